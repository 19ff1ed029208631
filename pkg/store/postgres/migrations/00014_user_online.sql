-- +goose Up

-- Users of whom the newest event says that they are online.
CREATE TABLE user_online (
  user_id text COLLATE "C" PRIMARY KEY
);

-- put_events adds events that are no entries; false if the fence is not any more
-- as the caller says. What says of a user what the newest event says already is
-- left out.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION imd_put_events(fence_ text, token_ bigint, holder_ text, kinds smallint[], users text[], ats bigint[]) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  base bigint;
  e record;
BEGIN
  IF NOT imd_proven(fence_, token_, holder_) THEN
    RETURN false;
  END IF;
  SELECT last_pos INTO base FROM outbox WHERE id = 1 FOR UPDATE;
  FOR e IN SELECT * FROM unnest(kinds, users, ats) WITH ORDINALITY AS u (kind, who, at_ms, n) ORDER BY n LOOP
    IF e.kind = 101 THEN
      INSERT INTO user_online (user_id) VALUES (e.who) ON CONFLICT DO NOTHING;
    ELSE
      DELETE FROM user_online WHERE user_id = e.who;
    END IF;
    IF FOUND THEN
      base := base + 1;
      INSERT INTO event (pos, conv, seq, at_ms, kind, user_id) VALUES (base, 0, 0, e.at_ms, e.kind, e.who);
    END IF;
  END LOOP;
  UPDATE outbox SET last_pos = base WHERE id = 1;
  RETURN true;
END $$;
-- +goose StatementEnd
