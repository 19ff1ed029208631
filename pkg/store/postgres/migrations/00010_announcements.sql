-- +goose Up

-- What everybody is told.
CREATE TABLE announcement (
  seq          bigint PRIMARY KEY,
  created_ms   bigint NOT NULL,
  expires_ms   bigint NOT NULL,
  withdrawn_ms bigint NOT NULL DEFAULT 0, -- 0 = it is not
  request_id   text   COLLATE "C" NOT NULL UNIQUE,
  body         text   NOT NULL
);

-- One row: the number of the newest announcement, and of the newest change. Who
-- changes anything locks it first, so that numbers and versions become visible in
-- their order.
CREATE TABLE announcing (
  id       integer PRIMARY KEY CHECK (id = 1),
  last_seq bigint  NOT NULL,
  version  bigint  NOT NULL
);

INSERT INTO announcing (id, last_seq, version) VALUES (1, 0, 0);

-- announce stores an announcement and answers its number, 0 if the request was
-- there before, -1 if most are in force.
-- +goose StatementBegin
CREATE FUNCTION imd_announce(request text, content text, created bigint, expires bigint, most integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  n bigint;
BEGIN
  SELECT a.last_seq + 1 INTO n FROM announcing a WHERE a.id = 1 FOR NO KEY UPDATE;
  IF EXISTS (SELECT 1 FROM announcement x WHERE x.request_id = request) THEN
    RETURN 0;
  END IF;
  IF (SELECT count(*) FROM announcement x WHERE x.withdrawn_ms = 0 AND x.expires_ms > created) >= most THEN
    RETURN -1;
  END IF;
  INSERT INTO announcement (seq, created_ms, expires_ms, request_id, body) VALUES (n, created, expires, request, content);
  UPDATE announcing SET last_seq = n, version = version + 1 WHERE id = 1;
  RETURN n;
END $$;
-- +goose StatementEnd

-- withdraw ends an announcement that is in force at a time.
-- +goose StatementBegin
CREATE FUNCTION imd_withdraw(seq_ bigint, at_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM announcing a WHERE a.id = 1 FOR NO KEY UPDATE;
  UPDATE announcement x SET withdrawn_ms = at_ms WHERE x.seq = seq_ AND x.withdrawn_ms = 0 AND x.expires_ms > at_ms;
  IF FOUND THEN
    UPDATE announcing SET version = version + 1 WHERE id = 1;
  END IF;
END $$;
-- +goose StatementEnd

-- trim_announcements removes those that ended before a time; -1 if the fence is
-- not as the leader says.
-- +goose StatementBegin
CREATE FUNCTION imd_trim_announcements(name_ text, token_ bigint, holder_ text, before bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  n integer;
BEGIN
  PERFORM 1 FROM fence f WHERE f.name = name_ AND f.token = token_ AND f.holder = holder_ FOR SHARE;
  IF NOT FOUND THEN
    RETURN -1;
  END IF;
  DELETE FROM announcement x WHERE x.expires_ms < before OR x.withdrawn_ms > 0 AND x.withdrawn_ms < before;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;
-- +goose StatementEnd
