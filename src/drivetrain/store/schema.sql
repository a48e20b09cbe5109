CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE attempts (
	id VARCHAR(26) NOT NULL,
	request_id TEXT NOT NULL,
	position INTEGER NOT NULL,
	started_s DOUBLE NOT NULL,
	dialect TEXT NOT NULL,
	model TEXT NOT NULL,
	engine TEXT NOT NULL,
	engine_model TEXT NOT NULL,
	stream BOOLEAN NOT NULL,
	outcome VARCHAR(16) NOT NULL,
	status INTEGER NOT NULL,
	why TEXT NOT NULL,
	prompt_tokens BIGINT NOT NULL,
	cached_tokens BIGINT NOT NULL,
	completion_tokens BIGINT NOT NULL,
	reasoning_tokens BIGINT NOT NULL,
	usage_estimated BOOLEAN NOT NULL,
	first_token_s DOUBLE,
	total_s DOUBLE NOT NULL,
	cost_micro_usd BIGINT NOT NULL,
	PRIMARY KEY (id)
)
 WITHOUT ROWID
;
CREATE INDEX ix_attempts_request_id ON attempts (request_id);
CREATE INDEX ix_attempts_started_s ON attempts (started_s);
CREATE INDEX ix_attempts_model ON attempts (model);
INSERT INTO alembic_version VALUES ('0001');
