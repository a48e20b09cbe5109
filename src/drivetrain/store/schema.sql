CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE attempts (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
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
	final BOOLEAN NOT NULL,
	key_id VARCHAR(26) NOT NULL,
	user_id VARCHAR(26) NOT NULL,
	project_id VARCHAR(26) NOT NULL,
	team_id VARCHAR(26) NOT NULL,
	org_id VARCHAR(26) NOT NULL,
	region TEXT NOT NULL,
	model_version TEXT NOT NULL,
	prompt_version TEXT NOT NULL,
	cache_write_tokens BIGINT NOT NULL,
	price_id VARCHAR(26) NOT NULL,
	compute_micro_usd BIGINT NOT NULL,
	received_s DOUBLE NOT NULL,
	queued_s DOUBLE NOT NULL,
	admitted_s DOUBLE NOT NULL,
	reserved_micro_usd BIGINT NOT NULL,
	overhead_s DOUBLE NOT NULL,
	rollout TEXT NOT NULL,
	trace_id VARCHAR(32) NOT NULL,
	span_id VARCHAR(16) NOT NULL,
	parent_span_id VARCHAR(16) NOT NULL,
	tags TEXT NOT NULL,
	UNIQUE (id)
);
CREATE INDEX ix_attempts_request_id ON attempts (request_id);
CREATE INDEX ix_attempts_started_s ON attempts (started_s);
CREATE TABLE spending (
	hour INTEGER NOT NULL,
	key_id VARCHAR(26) NOT NULL,
	user_id VARCHAR(26) NOT NULL,
	project_id VARCHAR(26) NOT NULL,
	team_id VARCHAR(26) NOT NULL,
	org_id VARCHAR(26) NOT NULL,
	model TEXT NOT NULL,
	cost_micro_usd BIGINT NOT NULL,
	PRIMARY KEY (hour, key_id, user_id, project_id, team_id, org_id, model)
)
 WITHOUT ROWID
;
CREATE INDEX ix_spending_key ON spending (key_id, hour);
CREATE TABLE orgs (
	id VARCHAR(26) NOT NULL,
	name TEXT NOT NULL,
	disabled BOOLEAN NOT NULL,
	created_s DOUBLE NOT NULL,
	version INTEGER NOT NULL, terms TEXT DEFAULT '{}' NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (name)
);
CREATE TABLE teams (
	id VARCHAR(26) NOT NULL,
	org VARCHAR(26) NOT NULL,
	name TEXT NOT NULL,
	models TEXT,
	disabled BOOLEAN NOT NULL,
	created_s DOUBLE NOT NULL,
	version INTEGER NOT NULL, terms TEXT DEFAULT '{}' NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (org, name),
	FOREIGN KEY(org) REFERENCES orgs (id)
);
CREATE TABLE projects (
	id VARCHAR(26) NOT NULL,
	team VARCHAR(26) NOT NULL,
	name TEXT NOT NULL,
	disabled BOOLEAN NOT NULL,
	created_s DOUBLE NOT NULL,
	version INTEGER NOT NULL, terms TEXT DEFAULT '{}' NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (team, name),
	FOREIGN KEY(team) REFERENCES teams (id)
);
CREATE TABLE users (
	id VARCHAR(26) NOT NULL,
	org VARCHAR(26) NOT NULL,
	name TEXT NOT NULL,
	email TEXT NOT NULL,
	subject TEXT NOT NULL,
	scopes TEXT NOT NULL,
	disabled BOOLEAN NOT NULL,
	created_s DOUBLE NOT NULL,
	version INTEGER NOT NULL, terms TEXT DEFAULT '{}' NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (org, name),
	FOREIGN KEY(org) REFERENCES orgs (id)
);
CREATE INDEX ix_users_subject ON users (subject);
CREATE TABLE keys (
	id VARCHAR(26) NOT NULL,
	public_id VARCHAR(12) NOT NULL,
	hash VARCHAR(64) NOT NULL,
	pepper VARCHAR(16) NOT NULL,
	name TEXT NOT NULL,
	project VARCHAR(26) NOT NULL,
	user VARCHAR(26) NOT NULL,
	scopes TEXT NOT NULL,
	models TEXT,
	priority VARCHAR(16) NOT NULL,
	expires_s DOUBLE,
	rotated_from VARCHAR(26) NOT NULL,
	tags TEXT NOT NULL,
	disabled BOOLEAN NOT NULL,
	created_s DOUBLE NOT NULL,
	version INTEGER NOT NULL, terms TEXT DEFAULT '{}' NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (public_id),
	FOREIGN KEY(project) REFERENCES projects (id)
);
CREATE INDEX ix_keys_project ON keys (project);
CREATE TABLE limits (
	id VARCHAR(26) NOT NULL,
	subject VARCHAR(16) NOT NULL,
	subject_id VARCHAR(26) NOT NULL,
	resource VARCHAR(16) NOT NULL,
	amount BIGINT NOT NULL,
	per VARCHAR(16) NOT NULL,
	model TEXT,
	on_loss VARCHAR(16) NOT NULL,
	version INTEGER NOT NULL,
	PRIMARY KEY (id)
);
CREATE INDEX ix_limits_subject ON limits (subject, subject_id);
CREATE TABLE budgets (
	id VARCHAR(26) NOT NULL,
	subject VARCHAR(16) NOT NULL,
	subject_id VARCHAR(26) NOT NULL,
	amount BIGINT NOT NULL,
	per VARCHAR(16) NOT NULL,
	rolling BOOLEAN NOT NULL,
	zone TEXT NOT NULL,
	hard BOOLEAN NOT NULL,
	model TEXT,
	on_loss VARCHAR(16) NOT NULL,
	version INTEGER NOT NULL,
	PRIMARY KEY (id)
);
CREATE INDEX ix_budgets_subject ON budgets (subject, subject_id);
CREATE TABLE prices (
	id VARCHAR(26) NOT NULL,
	engine TEXT NOT NULL,
	model TEXT NOT NULL,
	from_s DOUBLE NOT NULL,
	until_s DOUBLE,
	input BIGINT NOT NULL,
	cached_input BIGINT,
	cache_write BIGINT,
	output BIGINT NOT NULL,
	reasoning BIGINT,
	request BIGINT NOT NULL,
	second BIGINT NOT NULL,
	watts DOUBLE NOT NULL,
	kwh BIGINT NOT NULL,
	version INTEGER NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE bodies (
	request_id TEXT NOT NULL,
	at_s DOUBLE NOT NULL,
	delete_s DOUBLE NOT NULL,
	request TEXT NOT NULL,
	answer TEXT NOT NULL,
	PRIMARY KEY (request_id)
);
CREATE INDEX ix_bodies_delete_s ON bodies (delete_s);
CREATE TABLE audit (
	revision INTEGER NOT NULL,
	at_s DOUBLE NOT NULL,
	actor TEXT NOT NULL,
	action VARCHAR(16) NOT NULL,
	kind VARCHAR(16) NOT NULL,
	object_id TEXT NOT NULL,
	"before" TEXT,
	"after" TEXT,
	request_id TEXT NOT NULL,
	hash VARCHAR(64) NOT NULL,
	PRIMARY KEY (revision)
);
CREATE INDEX ix_audit_object ON audit (kind, object_id);
CREATE TABLE head (
	id INTEGER NOT NULL,
	revision BIGINT NOT NULL,
	hash VARCHAR(64) NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE config_revisions (
	revision INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	at_s DOUBLE NOT NULL,
	actor TEXT NOT NULL,
	hash VARCHAR(64) NOT NULL,
	body TEXT NOT NULL
);
CREATE TABLE sinks (
	name TEXT NOT NULL,
	seq BIGINT NOT NULL,
	state TEXT NOT NULL,
	updated_s DOUBLE NOT NULL,
	PRIMARY KEY (name)
);
CREATE INDEX ix_attempts_rollout ON attempts (rollout, seq) WHERE rollout <> '';
CREATE TABLE rollouts (
	id VARCHAR(26) NOT NULL,
	model TEXT NOT NULL,
	kind VARCHAR(16) NOT NULL,
	state VARCHAR(16) NOT NULL,
	stage INTEGER NOT NULL,
	since_s DOUBLE NOT NULL,
	why TEXT NOT NULL,
	spec TEXT NOT NULL,
	created_s DOUBLE NOT NULL,
	version INTEGER NOT NULL,
	PRIMARY KEY (id)
);
CREATE INDEX ix_rollouts_model ON rollouts (model);
CREATE TABLE rollout_history (
	rollout VARCHAR(26) NOT NULL,
	version INTEGER NOT NULL,
	at_s DOUBLE NOT NULL,
	actor TEXT NOT NULL,
	move VARCHAR(16) NOT NULL,
	state VARCHAR(16) NOT NULL,
	stage INTEGER NOT NULL,
	why TEXT NOT NULL,
	evidence TEXT,
	PRIMARY KEY (rollout, version)
);
CREATE TABLE prompts (
	name TEXT NOT NULL,
	version INTEGER NOT NULL,
	text TEXT NOT NULL,
	created_s DOUBLE NOT NULL,
	PRIMARY KEY (name, version)
);
CREATE TABLE comparisons (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	request_id TEXT NOT NULL,
	rollout VARCHAR(26) NOT NULL,
	arm TEXT NOT NULL,
	at_s DOUBLE NOT NULL,
	how VARCHAR(16) NOT NULL,
	value DOUBLE NOT NULL,
	first_token_s DOUBLE,
	baseline_first_token_s DOUBLE,
	total_s DOUBLE NOT NULL,
	baseline_total_s DOUBLE NOT NULL
);
CREATE INDEX ix_comparisons_rollout ON comparisons (rollout, seq);
CREATE INDEX ix_comparisons_at_s ON comparisons (at_s);
INSERT INTO head VALUES (1, 0, '');
INSERT INTO alembic_version VALUES ('0004');
