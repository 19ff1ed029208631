-- +goose Up

-- One row: who this store is, and how far it has come.
CREATE TABLE store (
  id         INTEGER PRIMARY KEY CHECK (id = 1),
  data_epoch TEXT    NOT NULL, -- the history of the store
  commits    INTEGER NOT NULL, -- grows with each commit; the version of every row that it changed
  newest_ms  INTEGER NOT NULL, -- server time of the newest entry, 0 = none
  clean      INTEGER NOT NULL, -- 1 = closed in order
  probe      BLOB    NOT NULL  -- written to see whether writing works
) STRICT;

CREATE TABLE conversation (
  num            INTEGER PRIMARY KEY,
  id             TEXT    NOT NULL UNIQUE,
  kind           INTEGER NOT NULL,
  name           TEXT    NOT NULL,
  closed         INTEGER NOT NULL,
  open_history   INTEGER NOT NULL,
  user_a         TEXT    NOT NULL, -- of a direct one; user_a < user_b
  user_b         TEXT    NOT NULL,
  head           INTEGER NOT NULL,
  members        INTEGER NOT NULL, -- present ones
  member_version INTEGER NOT NULL,
  version        INTEGER NOT NULL, -- last change of what all members see
  head_version   INTEGER NOT NULL  -- last change of head
) STRICT;

-- What the log is. Small columns first: counting never reads the contents.
CREATE TABLE entry (
  conv              INTEGER NOT NULL,
  seq               INTEGER NOT NULL,
  prev_seq          INTEGER NOT NULL,
  kind              INTEGER NOT NULL,
  countable         INTEGER NOT NULL,
  sender            TEXT    NOT NULL, -- '' = the system
  message_id        INTEGER NOT NULL,
  client_message_id ANY     NOT NULL, -- of changes the request id; a UUID takes 16 bytes
  server_time_ms    INTEGER NOT NULL,
  target_seq        INTEGER NOT NULL,
  changed_seq       INTEGER NOT NULL,
  body_hash         BLOB,             -- of sends
  change            BLOB,             -- of changes
  content           BLOB,
  PRIMARY KEY (conv, seq)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX entry_key ON entry (conv, sender, client_message_id);

-- Everyone who is or was a member. Clustered by user: sync is a range scan.
CREATE TABLE member (
  user_id         TEXT    NOT NULL,
  conversation_id TEXT    NOT NULL,
  conv            INTEGER NOT NULL,
  role            INTEGER NOT NULL, -- 0 = not a member any more
  start_seq       INTEGER NOT NULL, -- of the newest stretch: sees (start_seq, end_seq]
  end_seq         INTEGER NOT NULL, -- 0 = still open
  earlier         BLOB    NOT NULL, -- stretches before it
  cleared         INTEGER NOT NULL, -- sees nothing up to here
  delivered       INTEGER NOT NULL,
  read            INTEGER NOT NULL,
  left_name       TEXT    NOT NULL, -- the name when they left
  version         INTEGER NOT NULL, -- last change of this row
  PRIMARY KEY (user_id, conversation_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX member_present ON member (conv, user_id) WHERE role > 0;

-- Groups by the request that made them.
CREATE TABLE creation (
  actor      TEXT    NOT NULL,
  request_id ANY     NOT NULL,
  conv       INTEGER NOT NULL,
  PRIMARY KEY (actor, request_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE user (
  id         TEXT    PRIMARY KEY,
  created_ms INTEGER NOT NULL,
  disabled   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE block (
  user_id TEXT NOT NULL,
  blocked TEXT NOT NULL,
  PRIMARY KEY (user_id, blocked)
) STRICT, WITHOUT ROWID;

CREATE TABLE revocation (
  user_id          TEXT    NOT NULL,
  login            TEXT    NOT NULL, -- '' = all logins issued before
  issued_before_ms INTEGER NOT NULL,
  reason           INTEGER NOT NULL,
  until_ms         INTEGER NOT NULL,
  PRIMARY KEY (user_id, login)
) STRICT, WITHOUT ROWID;

CREATE TABLE api_key (
  id          TEXT    PRIMARY KEY,
  name        TEXT    NOT NULL,
  scopes      TEXT    NOT NULL, -- a JSON array
  secret_hash BLOB    NOT NULL,
  created_ms  INTEGER NOT NULL,
  revoked_ms  INTEGER NOT NULL  -- 0 = no
) STRICT, WITHOUT ROWID;

CREATE TABLE worker (
  id      INTEGER PRIMARY KEY,
  mark_us INTEGER NOT NULL
) STRICT;
