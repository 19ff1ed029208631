-- +goose Up

-- Messages that are to be sent later, and for a while what became of them.
CREATE TABLE scheduled (
  id              INTEGER PRIMARY KEY,
  due_ms          INTEGER NOT NULL,
  next_ms         INTEGER NOT NULL, -- when it is its turn
  created_ms      INTEGER NOT NULL,
  ended_ms        INTEGER NOT NULL, -- 0 = it is open
  token           INTEGER NOT NULL, -- of the leader that claimed it, 0 = none
  tries           INTEGER NOT NULL,
  state           INTEGER NOT NULL, -- 1 waiting, 2 sending, 3 sent, 4 dropped, 5 cancelled
  reason          INTEGER NOT NULL,
  message_id      INTEGER NOT NULL,
  seq             INTEGER NOT NULL,
  sender          TEXT    NOT NULL,
  conversation_id TEXT    NOT NULL,
  peer            TEXT    NOT NULL,
  request_id      TEXT    NOT NULL,
  client_id       TEXT    NOT NULL,
  body_hash       BLOB    NOT NULL,
  body            BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX scheduled_request ON scheduled (sender, request_id);
CREATE INDEX scheduled_sender ON scheduled (sender, due_ms, id);
CREATE INDEX scheduled_due ON scheduled (due_ms, id);
CREATE INDEX scheduled_next ON scheduled (next_ms, id) WHERE state IN (1, 2);
CREATE INDEX scheduled_open ON scheduled (sender) WHERE state IN (1, 2);
CREATE INDEX scheduled_ended ON scheduled (ended_ms) WHERE state > 2;
