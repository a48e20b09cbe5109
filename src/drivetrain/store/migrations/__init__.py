"""Alembic's steps from any earlier schema to the newest. `schema.sql` is their result, generated and tested."""

NEWEST = "0004"
