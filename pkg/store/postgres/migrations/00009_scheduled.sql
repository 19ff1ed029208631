-- +goose Up

-- Messages that are to be sent later, and for a while what became of them.
CREATE TABLE scheduled (
  id              bigint   PRIMARY KEY,
  due_ms          bigint   NOT NULL,
  next_ms         bigint   NOT NULL, -- when it is its turn
  created_ms      bigint   NOT NULL,
  ended_ms        bigint   NOT NULL DEFAULT 0, -- 0 = it is open
  token           bigint   NOT NULL DEFAULT 0, -- of the leader that claimed it, 0 = none
  message_id      bigint   NOT NULL DEFAULT 0,
  seq             bigint   NOT NULL DEFAULT 0,
  tries           integer  NOT NULL DEFAULT 0,
  state           smallint NOT NULL DEFAULT 1, -- 1 waiting, 2 sending, 3 sent, 4 dropped, 5 cancelled
  reason          smallint NOT NULL DEFAULT 0,
  sender          text     COLLATE "C" NOT NULL,
  conversation_id text     COLLATE "C" NOT NULL,
  peer            text     COLLATE "C" NOT NULL,
  request_id      text     COLLATE "C" NOT NULL,
  client_id       text     COLLATE "C" NOT NULL,
  body_hash       bytea    NOT NULL,
  body            bytea    NOT NULL
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX scheduled_request ON scheduled (sender, request_id);
CREATE INDEX scheduled_sender ON scheduled (sender, due_ms, id);
CREATE INDEX scheduled_due ON scheduled (due_ms, id);
CREATE INDEX scheduled_next ON scheduled (next_ms, id) WHERE state IN (1, 2);
CREATE INDEX scheduled_open ON scheduled (sender) WHERE state IN (1, 2);
CREATE INDEX scheduled_ended ON scheduled (ended_ms) WHERE state > 2;

-- schedule stores a message for later if its sender may send it now. It answers
-- 0 stored, 1 the request was there before, 3 not a member, 4 closed, 5 blocked,
-- 6 a wrong peer, 8 the sender has as many as it may. may_make is as for appends.
-- Calls of one sender wait for each other, so that its bound holds.
-- +goose StatementBegin
CREATE FUNCTION imd_schedule(id_ bigint, due bigint, created bigint, sender_ text, conv_ text, peer_ text, may_make smallint,
  request text, client text, hash bytea, content bytea, most integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  c conversation;
  other text;
BEGIN
  IF sender_ <> '' THEN
    PERFORM pg_advisory_xact_lock(hashtextextended(sender_, 7420));
  END IF;
  IF EXISTS (SELECT 1 FROM scheduled s WHERE s.sender = sender_ AND s.request_id = request) THEN
    RETURN 1;
  END IF;
  SELECT * INTO c FROM conversation x WHERE x.id = conv_;
  IF NOT FOUND THEN
    IF may_make = 0 THEN
      RETURN 3;
    ELSIF may_make = 2 THEN
      RETURN 6;
    END IF;
    other := peer_;
  ELSE
    IF c.kind = 1 THEN
      IF sender_ NOT IN ('', c.user_a, c.user_b) THEN
        RETURN 3;
      END IF;
      other := CASE WHEN sender_ = c.user_a THEN c.user_b ELSE c.user_a END;
    ELSIF sender_ <> '' AND NOT EXISTS (SELECT 1 FROM member m WHERE m.user_id = sender_ AND m.conversation_id = conv_ AND m.role > 0) THEN
      RETURN 3;
    END IF;
    IF c.closed THEN
      RETURN 4;
    END IF;
  END IF;
  IF sender_ <> '' AND other IS NOT NULL AND EXISTS (SELECT 1 FROM block b WHERE b.user_id = other AND b.blocked = sender_) THEN
    RETURN 5;
  END IF;
  IF sender_ <> '' AND (SELECT count(*) FROM scheduled s WHERE s.sender = sender_ AND s.state IN (1, 2)) >= most THEN
    RETURN 8;
  END IF;
  INSERT INTO scheduled (id, due_ms, next_ms, created_ms, sender, conversation_id, peer, request_id, client_id, body_hash, body)
    VALUES (id_, due, due, created, sender_, conv_, peer_, request, client, hash, content)
    ON CONFLICT (sender, request_id) DO NOTHING;
  RETURN CASE WHEN FOUND THEN 0 ELSE 1 END;
END $$;
-- +goose StatementEnd

-- claim_scheduled gives the leader rows whose turn has come. It fails with IM005 if
-- the fence is not as the leader says.
-- +goose StatementBegin
CREATE FUNCTION imd_claim_scheduled(name_ text, token_ bigint, holder_ text, now_ bigint, until_ bigint, most integer, first_ boolean)
RETURNS SETOF scheduled LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM fence f WHERE f.name = name_ AND f.token = token_ AND f.holder = holder_ FOR SHARE;
  IF NOT FOUND THEN
    RAISE SQLSTATE 'IM005' USING MESSAGE = 'another one leads';
  END IF;
  IF first_ THEN
    UPDATE scheduled s SET next_ms = least(s.next_ms, now_) WHERE s.state = 2 AND s.token <> token_ AND s.next_ms > now_;
  END IF;
  RETURN QUERY
    WITH turn AS (
      SELECT s.id FROM scheduled s WHERE s.state IN (1, 2) AND s.next_ms <= now_ ORDER BY s.next_ms, s.id LIMIT most FOR UPDATE
    )
    UPDATE scheduled s SET state = 2, token = token_, next_ms = until_ FROM turn t WHERE s.id = t.id RETURNING s.*;
END $$;
-- +goose StatementEnd

-- settle_scheduled stores what became of claimed rows; false if the fence is not
-- as the leader says.
-- +goose StatementBegin
CREATE FUNCTION imd_settle_scheduled(name_ text, token_ bigint, holder_ text, ids bigint[], states smallint[], nexts bigint[], reasons smallint[],
  messages bigint[], seqs bigint[], ats bigint[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM fence f WHERE f.name = name_ AND f.token = token_ AND f.holder = holder_ FOR SHARE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE scheduled s SET state = d.state, reason = d.reason, message_id = d.message, seq = d.seq,
      next_ms = CASE WHEN d.state = 2 THEN d.next ELSE s.next_ms END,
      tries = s.tries + CASE WHEN d.state = 2 THEN 1 ELSE 0 END,
      ended_ms = CASE WHEN d.state = 2 THEN 0 ELSE d.at END
    FROM unnest(ids, states, nexts, reasons, messages, seqs, ats) AS d (id, state, next, reason, message, seq, at)
    WHERE s.id = d.id AND s.state = 2;
  RETURN true;
END $$;
-- +goose StatementEnd

-- trim_scheduled removes rows that ended before a time; -1 if the fence is not as
-- the leader says.
-- +goose StatementBegin
CREATE FUNCTION imd_trim_scheduled(name_ text, token_ bigint, holder_ text, before bigint, most integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  n integer;
BEGIN
  PERFORM 1 FROM fence f WHERE f.name = name_ AND f.token = token_ AND f.holder = holder_ FOR SHARE;
  IF NOT FOUND THEN
    RETURN -1;
  END IF;
  DELETE FROM scheduled s WHERE s.id IN (SELECT x.id FROM scheduled x WHERE x.state > 2 AND x.ended_ms < before ORDER BY x.ended_ms LIMIT most);
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;
-- +goose StatementEnd
