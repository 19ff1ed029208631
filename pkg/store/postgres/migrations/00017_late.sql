-- +goose Up

-- Databases of builds between two releases have this index already.
CREATE INDEX IF NOT EXISTS scheduled_sending ON scheduled (next_ms) WHERE state = 2;

-- +goose StatementBegin
-- retain moves the borders of conversations with a number above after_ over what
-- is older than a time, which is 0 where nothing goes, and removes the bodies of
-- the sends behind them. It looks at most at looks conversations and takes most
-- entries; a conversation that somebody else holds, or has moved since it was read,
-- is left for the next time. next is where to go on; ended says that all have been
-- looked at.
CREATE OR REPLACE FUNCTION imd_retain(fence_ text, token_ bigint, holder_ text, after_ bigint, direct_ms bigint, group_ms bigint, looks integer, most integer)
RETURNS TABLE (proven boolean, next bigint, ended boolean, looked integer, taken integer) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  c record;
  cut bigint;
  border bigint;
  old integer;
  seen integer := 0;
  gone integer := 0;
  place bigint := after_;
  over boolean := true;
BEGIN
  IF NOT imd_proven(fence_, token_, holder_) THEN
    RETURN QUERY SELECT false, 0::bigint, false, 0, 0;
    RETURN;
  END IF;
  FOR c IN SELECT x.num, x.kept, x.kind, x.head FROM conversation x WHERE x.num > after_ ORDER BY x.num LIMIT looks LOOP
    seen := seen + 1;
    cut := CASE WHEN c.kind = 1 THEN direct_ms ELSE group_ms END;
    IF cut > 0 AND c.kept < c.head AND cut > (SELECT e.server_ms FROM entry e WHERE e.conv = c.num AND e.seq > c.kept ORDER BY e.seq LIMIT 1) THEN
      SELECT max(s.seq), count(*) INTO border, old FROM (
        SELECT e.seq, bool_and(e.server_ms < cut) OVER (ORDER BY e.seq) AS old
          FROM (SELECT f.seq, f.server_ms FROM entry f WHERE f.conv = c.num AND f.seq > c.kept ORDER BY f.seq LIMIT most - gone) e
      ) s WHERE s.old;
      PERFORM 1 FROM conversation x WHERE x.num = c.num AND x.kept = c.kept FOR NO KEY UPDATE SKIP LOCKED; -- else another call has moved it
      IF FOUND THEN
        UPDATE conversation x SET kept = border, version = imd_xid() WHERE x.num = c.num;
        UPDATE entry e SET body = NULL WHERE e.conv = c.num AND e.seq > c.kept AND e.seq <= border AND e.body_hash IS NOT NULL;
        gone := gone + old;
      END IF;
    END IF;
    IF gone >= most THEN -- there may be more in this one
      over := false;
      EXIT;
    END IF;
    place := c.num;
  END LOOP;
  RETURN QUERY SELECT true, place, over AND seen < looks, seen, gone;
END $$;
-- +goose StatementEnd
