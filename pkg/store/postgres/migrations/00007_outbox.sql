-- +goose Up

-- One row: how far the outbox is.
CREATE TABLE outbox (
  id       smallint PRIMARY KEY CHECK (id = 1),
  feeding  boolean NOT NULL, -- commits leave marks
  last_pos bigint  NOT NULL, -- of the newest event ever, 0 = none
  trimmed  bigint  NOT NULL  -- events up to here were removed
) WITH (fillfactor = 50);

INSERT INTO outbox (id, feeding, last_pos, trimmed) VALUES (1, false, 0, 0);

-- What commits leave for the leader: entries of conv in (low, high]. The id is
-- given under the lock of the conversation, so of two marks of one conversation
-- the lower id is the lower seq, and who sees the second sees the first.
CREATE TABLE feed (
  id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  conv bigint NOT NULL,
  low  bigint NOT NULL,
  high bigint NOT NULL
);

CREATE TABLE event (
  pos     bigint   PRIMARY KEY,
  conv    bigint   NOT NULL, -- 0 = of no conversation
  seq     bigint   NOT NULL,
  at_ms   bigint   NOT NULL,
  kind    smallint NOT NULL,
  user_id text     COLLATE "C" NOT NULL
);

CREATE TABLE receiver (
  name       text   COLLATE "C" PRIMARY KEY,
  cursor     bigint NOT NULL,
  reached    bigint NOT NULL, -- highest cursor ever
  generation bigint NOT NULL, -- rises when somebody else than the leader moves it
  token      bigint NOT NULL, -- of the leader that wrote it
  saved_ms   bigint NOT NULL,
  open       bytea  NOT NULL  -- what is not settled up to the cursor
) WITH (fillfactor = 50);

CREATE TABLE dead_letter (
  receiver text    COLLATE "C" NOT NULL,
  pos      bigint  NOT NULL,
  at_ms    bigint  NOT NULL,
  tries    integer NOT NULL,
  again    boolean NOT NULL, -- somebody has asked for it
  reason   text    NOT NULL,
  PRIMARY KEY (receiver, pos)
);

CREATE INDEX dead_letter_pos ON dead_letter (pos);

-- What offline users have to be told.
CREATE TABLE push (
  user_id         text     COLLATE "C" NOT NULL,
  conversation_id text     COLLATE "C" NOT NULL,
  seq             bigint   NOT NULL,
  message_id      bigint   NOT NULL,
  at_ms           bigint   NOT NULL,
  due_ms          bigint   NOT NULL,
  tries           integer  NOT NULL,
  state           smallint NOT NULL, -- 1 due, 2 sent, 3 to be withdrawn, 4 given up
  sender          text     COLLATE "C" NOT NULL,
  PRIMARY KEY (user_id, conversation_id)
) WITH (fillfactor = 80);

CREATE INDEX push_due ON push (due_ms) WHERE state IN (1, 3);

CREATE TABLE mute (
  user_id         text   COLLATE "C" NOT NULL,
  conversation_id text   COLLATE "C" NOT NULL,
  until_ms        bigint NOT NULL,
  PRIMARY KEY (user_id, conversation_id)
);

-- Whoever moves the head of a conversation leaves a mark. The functions that do
-- so are what they were but for this.
-- +goose StatementBegin
DO $$
DECLARE
  name text;
  was text;
  code text;
BEGIN
  FOREACH name IN ARRAY ARRAY['imd_append_transaction', 'imd_append_segment'] LOOP
    was := pg_get_functiondef(name::regproc);
    code := replace(was, $old$      WHERE c.num = m.num
  ), stamped AS ($old$, $new$      WHERE c.num = m.num
  ), fed AS (
    INSERT INTO feed (conv, low, high)
      SELECT n.num, min(n.new_seq) - 1, max(n.new_seq) FROM numbered n
        WHERE n.verdict = 0 AND (SELECT b.feeding FROM outbox b WHERE b.id = 1) GROUP BY n.num
  ), stamped AS ($new$);
    IF code = was THEN
      RAISE EXCEPTION '% has another form than this step knows', name;
    END IF;
    EXECUTE code;
  END LOOP;
END $$;
-- +goose StatementEnd

-- mark moves positions of present members up and never past the head. What users
-- were told of and have read is to be withdrawn.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION imd_mark(convs text[], users text[], delivereds bigint[], reads bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM member m JOIN unnest(convs, users) AS p (conv, who) ON m.user_id = p.who AND m.conversation_id = p.conv
    ORDER BY m.user_id, m.conversation_id FOR NO KEY UPDATE OF m;
  WITH moved AS (
    UPDATE member m SET read = x.read, delivered = x.delivered, version = imd_xid()
      FROM (
        SELECT y.user_id, y.conversation_id, y.read, y.was_read, greatest(y.was, y.start, y.read, y.wanted) AS delivered
        FROM (
          SELECT n.user_id, n.conversation_id, n.delivered AS was, greatest(n.first_seq, n.cleared) AS start, n.role, n.read AS was_read,
            greatest(n.read, least(p.read, c.head)) AS read, least(p.delivered, c.head) AS wanted
          FROM (SELECT u.conv, u.who, max(u.delivered) AS delivered, max(u.read) AS read
                  FROM unnest(convs, users, delivereds, reads) AS u (conv, who, delivered, read) GROUP BY u.conv, u.who) p
          JOIN member n ON n.user_id = p.who AND n.conversation_id = p.conv
          JOIN conversation c ON c.num = n.conv
        ) y
        WHERE y.role > 0 AND (y.read > y.was_read OR greatest(y.start, y.read, y.wanted) > greatest(y.was, y.start))
      ) x
      WHERE m.user_id = x.user_id AND m.conversation_id = x.conversation_id
      RETURNING m.user_id, m.conversation_id, m.read, x.was_read
  ), unsent AS (
    DELETE FROM push p USING moved v
      WHERE v.read > v.was_read AND p.user_id = v.user_id AND p.conversation_id = v.conversation_id AND p.seq <= v.read AND p.state IN (1, 4) AND p.tries = 0
  )
  UPDATE push p SET state = 3, due_ms = imd_now_ms(), tries = 0 FROM moved v
    WHERE v.read > v.was_read AND p.user_id = v.user_id AND p.conversation_id = v.conversation_id AND p.seq <= v.read
      AND (p.state = 2 OR p.state IN (1, 4) AND p.tries > 0);
END $$;
-- +goose StatementEnd

-- set_feed makes commits leave marks, or stops it; false if the fence is not any
-- more as the caller says.
-- +goose StatementBegin
CREATE FUNCTION imd_set_feed(fence_ text, token_ bigint, holder_ text, on_ boolean) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF NOT imd_proven(fence_, token_, holder_) THEN
    RETURN false;
  END IF;
  UPDATE outbox SET feeding = on_ WHERE id = 1 AND feeding <> on_;
  IF NOT on_ THEN
    DELETE FROM feed;
  END IF;
  RETURN true;
END $$;
-- +goose StatementEnd

-- gather turns the oldest marks into events and returns how many marks; -1 if the
-- fence is not any more as the caller says. A mark that is not seen yet has a
-- higher place among those of its conversation than all that are.
-- +goose StatementBegin
CREATE FUNCTION imd_gather(fence_ text, token_ bigint, holder_ text, most integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  marks integer;
  made bigint;
  base bigint;
BEGIN
  IF NOT imd_proven(fence_, token_, holder_) THEN
    RETURN -1;
  END IF;
  SELECT last_pos INTO base FROM outbox WHERE id = 1 FOR NO KEY UPDATE;
  WITH taken AS MATERIALIZED (
    DELETE FROM feed f WHERE f.id = ANY (ARRAY(SELECT o.id FROM feed o ORDER BY o.id LIMIT most)) RETURNING f.id, f.conv, f.low, f.high
  ), found AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY t.id, e.seq) AS n, e.conv, e.seq, e.server_ms, e.kind
      FROM taken t JOIN LATERAL (SELECT * FROM entry x WHERE x.conv = t.conv AND x.seq > t.low AND x.seq <= t.high) e ON true
  ), put AS (
    INSERT INTO event (pos, conv, seq, at_ms, kind, user_id) SELECT base + f.n, f.conv, f.seq, f.server_ms, f.kind, '' FROM found f
  )
  SELECT (SELECT count(*) FROM taken), (SELECT count(*) FROM found) INTO marks, made;
  IF made > 0 THEN
    UPDATE outbox SET last_pos = base + made WHERE id = 1;
  END IF;
  RETURN marks;
END $$;
-- +goose StatementEnd

-- put_events adds events that are no entries; false if the fence is not any more
-- as the caller says.
-- +goose StatementBegin
CREATE FUNCTION imd_put_events(fence_ text, token_ bigint, holder_ text, kinds smallint[], users text[], ats bigint[]) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  base bigint;
BEGIN
  IF NOT imd_proven(fence_, token_, holder_) THEN
    RETURN false;
  END IF;
  UPDATE outbox SET last_pos = last_pos + cardinality(kinds) WHERE id = 1 RETURNING last_pos - cardinality(kinds) INTO base;
  INSERT INTO event (pos, conv, seq, at_ms, kind, user_id)
    SELECT base + u.n, 0, 0, u.at_ms, u.kind, u.who FROM unnest(kinds, users, ats) WITH ORDINALITY AS u (kind, who, at_ms, n);
  RETURN true;
END $$;
-- +goose StatementEnd

-- trim_events removes the oldest events that happened before a time and returns
-- how many; -1 if the fence is not any more as the caller says.
-- +goose StatementBegin
CREATE FUNCTION imd_trim_events(fence_ text, token_ bigint, holder_ text, before_ms bigint, most integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  upto bigint;
  n integer;
BEGIN
  IF NOT imd_proven(fence_, token_, holder_) THEN
    RETURN -1;
  END IF;
  SELECT max(o.pos) INTO upto FROM (SELECT e.pos, e.at_ms FROM event e ORDER BY e.pos LIMIT most) o WHERE o.at_ms < before_ms;
  IF upto IS NULL THEN
    RETURN 0;
  END IF;
  DELETE FROM dead_letter WHERE pos <= upto;
  DELETE FROM event WHERE pos <= upto;
  GET DIAGNOSTICS n = ROW_COUNT;
  UPDATE outbox SET trimmed = upto WHERE id = 1;
  RETURN n;
END $$;
-- +goose StatementEnd

-- save_receiver stores where a receiver stands and what was settled with it. It
-- returns 0 if that is done, 1 if somebody else has moved the receiver, and -1 if
-- the fence is not any more as the caller says.
-- +goose StatementBegin
CREATE FUNCTION imd_save_receiver(fence_ text, token_ bigint, holder_ text, name_ text, cursor_ bigint, reached_ bigint, generation_ bigint, open_ bytea,
  dead bigint[], tries_ integer[], reasons text[], revived bigint[],
  push_users text[], push_convs text[], push_seqs bigint[], push_ids bigint[], push_senders text[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  now_ms bigint := imd_now_ms();
BEGIN
  IF NOT imd_proven(fence_, token_, holder_) THEN
    RETURN -1;
  END IF;
  IF generation_ = 0 THEN
    INSERT INTO receiver (name, cursor, reached, generation, token, saved_ms, open) VALUES (name_, cursor_, reached_, 1, token_, now_ms, open_)
      ON CONFLICT (name) DO NOTHING;
  ELSE
    UPDATE receiver SET cursor = cursor_, reached = greatest(reached, reached_), token = token_, saved_ms = now_ms, open = open_
      WHERE name = name_ AND generation = generation_;
  END IF;
  IF NOT FOUND THEN
    RETURN 1;
  END IF;
  DELETE FROM dead_letter WHERE receiver = name_ AND pos = ANY (revived);
  INSERT INTO dead_letter (receiver, pos, at_ms, tries, again, reason)
    SELECT name_, d.pos, now_ms, d.tries, false, d.reason FROM unnest(dead, tries_, reasons) AS d (pos, tries, reason)
    ON CONFLICT (receiver, pos) DO UPDATE SET at_ms = excluded.at_ms, tries = excluded.tries, again = false, reason = excluded.reason;
  INSERT INTO push AS p (user_id, conversation_id, seq, message_id, at_ms, due_ms, tries, state, sender)
    SELECT DISTINCT ON (u.who, u.conv) u.who, u.conv, u.seq, u.id, now_ms, now_ms, 0, 1, u.sender
      FROM unnest(push_users, push_convs, push_seqs, push_ids, push_senders) AS u (who, conv, seq, id, sender)
      JOIN member m ON m.user_id = u.who AND m.conversation_id = u.conv AND m.role > 0 AND m.read < u.seq
      ORDER BY u.who, u.conv, u.seq DESC
    ON CONFLICT (user_id, conversation_id) DO UPDATE SET seq = excluded.seq, message_id = excluded.message_id, at_ms = excluded.at_ms,
      due_ms = excluded.due_ms, tries = 0, state = 1, sender = excluded.sender
      WHERE p.seq < excluded.seq;
  RETURN 0;
END $$;
-- +goose StatementEnd

-- settle_pushes stores what became of pushes, unless their rows have changed
-- since; false if the fence is not any more as the caller says. Next state 0 = the
-- row is not needed any more. A row that went while its user was told was read:
-- it comes back to be withdrawn.
-- +goose StatementBegin
CREATE FUNCTION imd_settle_pushes(fence_ text, token_ bigint, holder_ text, users text[], convs text[], seqs bigint[], states smallint[], nexts smallint[],
  dues bigint[], tries_ integer[], ids bigint[], senders text[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF NOT imd_proven(fence_, token_, holder_) THEN
    RETURN false;
  END IF;
  PERFORM 1 FROM push p JOIN unnest(users, convs) AS u (who, conv) ON p.user_id = u.who AND p.conversation_id = u.conv
    ORDER BY p.user_id, p.conversation_id FOR NO KEY UPDATE OF p;
  DELETE FROM push p USING unnest(users, convs, seqs, states, nexts) AS u (who, conv, seq, state, next)
    WHERE p.user_id = u.who AND p.conversation_id = u.conv AND p.seq = u.seq AND p.state = u.state AND u.next = 0;
  UPDATE push p SET state = u.next, due_ms = u.due, tries = u.tries FROM unnest(users, convs, seqs, states, nexts, dues, tries_) AS u (who, conv, seq, state, next, due, tries)
    WHERE p.user_id = u.who AND p.conversation_id = u.conv AND p.seq = u.seq AND p.state = u.state AND u.next > 0;
  INSERT INTO push (user_id, conversation_id, seq, message_id, at_ms, due_ms, tries, state, sender)
    SELECT u.who, u.conv, u.seq, u.id, imd_now_ms(), imd_now_ms(), 0, 3, u.sender
      FROM unnest(users, convs, seqs, states, nexts, ids, senders) AS u (who, conv, seq, state, next, id, sender) WHERE u.state = 1 AND u.next = 2
      ORDER BY u.who, u.conv
    ON CONFLICT (user_id, conversation_id) DO NOTHING;
  RETURN true;
END $$;
-- +goose StatementEnd

-- rewind makes a receiver begin anew behind a position, or get its dead letters
-- once more; it returns how many of those, -1 if there is no such receiver.
-- +goose StatementBegin
CREATE FUNCTION imd_rewind(name_ text, after_ bigint, dead boolean) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  n integer := 0;
BEGIN
  UPDATE receiver SET generation = generation + 1, cursor = CASE WHEN dead THEN cursor ELSE least(cursor, after_) END,
      open = CASE WHEN dead THEN open ELSE '' END
    WHERE name = name_;
  IF NOT FOUND THEN
    RETURN -1;
  END IF;
  IF dead THEN
    UPDATE dead_letter SET again = true WHERE receiver = name_;
    GET DIAGNOSTICS n = ROW_COUNT;
  END IF;
  RETURN n;
END $$;
-- +goose StatementEnd
