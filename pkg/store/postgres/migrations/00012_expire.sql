-- +goose Up

CREATE INDEX session_until ON session (until_ms);
CREATE INDEX mute_until ON mute (until_ms);

-- expire removes what is over at at_ms, at most most rows of each kind:
-- revocations, notes of sessions, and mutes. It returns how many rows went, -1 if
-- the fence is not as the caller says. What somebody uses is left for the next call.
DROP FUNCTION imd_expire(text, bigint, text, bigint);

-- +goose StatementBegin
CREATE FUNCTION imd_expire(name_ text, token_ bigint, holder_ text, at_ms bigint, most integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  n bigint;
  gone bigint;
BEGIN
  IF NOT imd_proven(name_, token_, holder_) THEN
    RETURN -1;
  END IF;
  DELETE FROM revocation r USING (SELECT x.user_id, x.login FROM revocation x WHERE x.until_ms <= at_ms ORDER BY x.until_ms LIMIT most FOR UPDATE SKIP LOCKED) o
    WHERE r.user_id = o.user_id AND r.login = o.login;
  GET DIAGNOSTICS gone = ROW_COUNT;
  DELETE FROM session s USING (SELECT x.user_id, x.login, x.device FROM session x WHERE x.until_ms <= at_ms LIMIT most FOR UPDATE SKIP LOCKED) o
    WHERE s.user_id = o.user_id AND s.login = o.login AND s.device = o.device;
  GET DIAGNOSTICS n = ROW_COUNT;
  gone := gone + n;
  DELETE FROM mute m USING (SELECT x.user_id, x.conversation_id FROM mute x WHERE x.until_ms <= at_ms LIMIT most FOR UPDATE SKIP LOCKED) o
    WHERE m.user_id = o.user_id AND m.conversation_id = o.conversation_id;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN gone + n;
END $$;
-- +goose StatementEnd
