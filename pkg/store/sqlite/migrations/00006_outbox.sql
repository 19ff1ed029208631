-- +goose Up

-- One row: how far the outbox is.
CREATE TABLE outbox (
  id       INTEGER PRIMARY KEY CHECK (id = 1),
  feeding  INTEGER NOT NULL, -- 1 = commits leave marks
  last_pos INTEGER NOT NULL, -- of the newest event ever, 0 = none
  trimmed  INTEGER NOT NULL  -- events up to here were removed
) STRICT;

INSERT INTO outbox (id, feeding, last_pos, trimmed) VALUES (1, 0, 0, 0);

-- What commits leave for the leader: entries of conv in (low, high].
CREATE TABLE feed (
  id   INTEGER PRIMARY KEY,
  conv INTEGER NOT NULL,
  low  INTEGER NOT NULL,
  high INTEGER NOT NULL
) STRICT;

CREATE TABLE event (
  pos     INTEGER PRIMARY KEY,
  conv    INTEGER NOT NULL, -- 0 = of no conversation
  seq     INTEGER NOT NULL,
  at_ms   INTEGER NOT NULL,
  kind    INTEGER NOT NULL,
  user_id TEXT    NOT NULL
) STRICT;

CREATE TABLE receiver (
  name       TEXT    PRIMARY KEY,
  cursor     INTEGER NOT NULL,
  reached    INTEGER NOT NULL, -- highest cursor ever
  generation INTEGER NOT NULL, -- rises when somebody else than the leader moves it
  token      INTEGER NOT NULL, -- of the leader that wrote it
  saved_ms   INTEGER NOT NULL,
  open       BLOB    NOT NULL  -- what is not settled up to the cursor
) STRICT, WITHOUT ROWID;

CREATE TABLE dead_letter (
  receiver TEXT    NOT NULL,
  pos      INTEGER NOT NULL,
  at_ms    INTEGER NOT NULL,
  tries    INTEGER NOT NULL,
  again    INTEGER NOT NULL, -- 1 = somebody has asked for it
  reason   TEXT    NOT NULL,
  PRIMARY KEY (receiver, pos)
) STRICT, WITHOUT ROWID;

CREATE INDEX dead_letter_pos ON dead_letter (pos);

-- What offline users have to be told.
CREATE TABLE push (
  user_id         TEXT    NOT NULL,
  conversation_id TEXT    NOT NULL,
  seq             INTEGER NOT NULL,
  message_id      INTEGER NOT NULL,
  at_ms           INTEGER NOT NULL,
  due_ms          INTEGER NOT NULL,
  tries           INTEGER NOT NULL,
  state           INTEGER NOT NULL, -- 1 due, 2 sent, 3 to be withdrawn, 4 given up
  sender          TEXT    NOT NULL,
  PRIMARY KEY (user_id, conversation_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX push_due ON push (due_ms) WHERE state IN (1, 3);

CREATE TABLE mute (
  user_id         TEXT    NOT NULL,
  conversation_id TEXT    NOT NULL,
  until_ms        INTEGER NOT NULL,
  PRIMARY KEY (user_id, conversation_id)
) STRICT, WITHOUT ROWID;
