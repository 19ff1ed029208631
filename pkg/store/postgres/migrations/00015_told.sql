-- +goose Up

-- claim_scheduled gives the leader rows whose turn has come; with first_ also what
-- was claimed and not settled, by whomever. What was settled to come again has no
-- token, and keeps its time. What somebody cancels at this moment is
-- left for the next claim. It fails with IM005 if the fence is not as the leader says.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION imd_claim_scheduled(name_ text, token_ bigint, holder_ text, now_ bigint, until_ bigint, most integer, first_ boolean)
RETURNS SETOF scheduled LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM fence f WHERE f.name = name_ AND f.token = token_ AND f.holder = holder_ FOR SHARE;
  IF NOT FOUND THEN
    RAISE SQLSTATE 'IM005' USING MESSAGE = 'another one leads';
  END IF;
  IF first_ THEN
    UPDATE scheduled s SET next_ms = now_ WHERE s.state = 2 AND s.next_ms > now_ AND s.token <> 0;
  END IF;
  RETURN QUERY
    WITH turn AS (
      SELECT s.id FROM scheduled s WHERE s.state IN (1, 2) AND s.next_ms <= now_ ORDER BY s.next_ms, s.id LIMIT most FOR UPDATE SKIP LOCKED
    )
    UPDATE scheduled s SET state = 2, token = token_, next_ms = until_ FROM turn t WHERE s.id = t.id RETURNING s.*;
END $$;
-- +goose StatementEnd

-- settle_scheduled stores what became of claimed rows; false if the fence is not as
-- the leader says. What comes again is nobody's until then.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION imd_settle_scheduled(name_ text, token_ bigint, holder_ text, ids bigint[], states smallint[], nexts bigint[], reasons smallint[],
  messages bigint[], seqs bigint[], ats bigint[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM fence f WHERE f.name = name_ AND f.token = token_ AND f.holder = holder_ FOR SHARE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM 1 FROM scheduled s WHERE s.id = ANY (ids) ORDER BY s.next_ms, s.id FOR NO KEY UPDATE; -- in the order of claims
  UPDATE scheduled s SET state = d.state, reason = d.reason, message_id = d.message, seq = d.seq,
      next_ms = CASE WHEN d.state = 2 THEN d.next ELSE s.next_ms END,
      token = CASE WHEN d.state = 2 THEN 0 ELSE s.token END,
      tries = s.tries + CASE WHEN d.state = 2 THEN 1 ELSE 0 END,
      ended_ms = CASE WHEN d.state = 2 THEN 0 ELSE d.at END
    FROM unnest(ids, states, nexts, reasons, messages, seqs, ats) AS d (id, state, next, reason, message, seq, at)
    WHERE s.id = d.id AND s.state = 2;
  RETURN true;
END $$;
-- +goose StatementEnd

-- Number of the withdrawal in the sequence of announcements; 0 = there was none, or
-- before withdrawals had numbers.
ALTER TABLE announcement ADD COLUMN withdrawal bigint NOT NULL DEFAULT 0;

-- What is in force, and what has ended, is found by its time.
CREATE INDEX announcement_expires ON announcement (expires_ms);
CREATE INDEX announcement_withdrawn ON announcement (withdrawn_ms) WHERE withdrawn_ms > 0;
CREATE INDEX announcement_withdrawal ON announcement (withdrawal) WHERE withdrawal > 0;

-- withdraw ends an announcement that is in force at a time. It takes the next number
-- of the sequence, so that who has been told up to a number knows what is new.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION imd_withdraw(seq_ bigint, at_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM announcing a WHERE a.id = 1 FOR NO KEY UPDATE;
  UPDATE announcement x SET withdrawn_ms = at_ms, withdrawal = a.last_seq + 1 FROM announcing a
    WHERE a.id = 1 AND x.seq = seq_ AND x.withdrawn_ms = 0 AND x.expires_ms > at_ms;
  IF FOUND THEN
    UPDATE announcing SET last_seq = last_seq + 1, version = version + 1 WHERE id = 1;
  END IF;
END $$;
-- +goose StatementEnd

-- expire is what it was, but that the oldest go first of each kind.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION imd_expire(name_ text, token_ bigint, holder_ text, at_ms bigint, most integer) RETURNS bigint LANGUAGE plpgsql AS $$
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
  DELETE FROM session s USING (SELECT x.user_id, x.login, x.device FROM session x WHERE x.until_ms <= at_ms ORDER BY x.until_ms LIMIT most FOR UPDATE SKIP LOCKED) o
    WHERE s.user_id = o.user_id AND s.login = o.login AND s.device = o.device;
  GET DIAGNOSTICS n = ROW_COUNT;
  gone := gone + n;
  DELETE FROM mute m USING (SELECT x.user_id, x.conversation_id FROM mute x WHERE x.until_ms <= at_ms ORDER BY x.until_ms LIMIT most FOR UPDATE SKIP LOCKED) o
    WHERE m.user_id = o.user_id AND m.conversation_id = o.conversation_id;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN gone + n;
END $$;
-- +goose StatementEnd

-- The user has, or may have, been told of this or of an older message of the
-- conversation, and has not read it since; of what was sent or is withdrawn its
-- state says so. Up to now tries did for the others, which also count those that were
-- refused. This comes last, because it keeps everybody from the table until the end.
ALTER TABLE push ADD COLUMN told boolean NOT NULL DEFAULT false;
UPDATE push SET told = true WHERE tries > 0 AND state IN (1, 4);

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
      WHERE v.read > v.was_read AND p.user_id = v.user_id AND p.conversation_id = v.conversation_id AND p.seq <= v.read AND p.state IN (1, 4) AND NOT p.told
  )
  UPDATE push p SET state = 3, due_ms = imd_now_ms(), tries = 0 FROM moved v
    WHERE v.read > v.was_read AND p.user_id = v.user_id AND p.conversation_id = v.conversation_id AND p.seq <= v.read
      AND (p.state = 2 OR p.state IN (1, 4) AND p.told);
END $$;
-- +goose StatementEnd

-- save_receiver stores where a receiver stands and what was settled with it. It
-- returns 0 if that is done, 1 if somebody else has moved the receiver, and -1 if
-- the fence is not any more as the caller says.
--
-- A push takes the place of an older one of its conversation. told remembers that
-- its user may have been told of the older one, which is withdrawn when the
-- conversation is read. If the older one was tried, the newer one waits until the
-- pause is over that it left in due_ms. Nothing is due of what is muted.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION imd_save_receiver(fence_ text, token_ bigint, holder_ text, name_ text, cursor_ bigint, reached_ bigint, generation_ bigint, open_ bytea,
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
      WHERE NOT EXISTS (SELECT 1 FROM mute x WHERE x.user_id = u.who AND x.conversation_id = u.conv AND x.until_ms > now_ms)
      ORDER BY u.who, u.conv, u.seq DESC
    ON CONFLICT (user_id, conversation_id) DO UPDATE SET seq = excluded.seq, message_id = excluded.message_id, at_ms = excluded.at_ms,
      due_ms = CASE WHEN p.state = 2 OR p.state = 1 AND (p.told OR p.tries > 0) THEN greatest(excluded.due_ms, p.due_ms) ELSE excluded.due_ms END,
      told = p.told OR p.state IN (2, 3), tries = 0, state = 1, sender = excluded.sender
      WHERE p.seq < excluded.seq;
  RETURN 0;
END $$;
-- +goose StatementEnd

-- settle_pushes stores what became of pushes, unless their rows have changed
-- since; false if the fence is not any more as the caller says. Next state 0 = the
-- row is not needed any more. A row that went while its user was told was read:
-- it comes back to be withdrawn. One that has got a newer message meanwhile
-- remembers that its user may have been told of the older one.
-- +goose StatementBegin
CREATE FUNCTION imd_settle_pushes(fence_ text, token_ bigint, holder_ text, users text[], convs text[], seqs bigint[], states smallint[], nexts smallint[],
  dues bigint[], tries_ integer[], ids bigint[], senders text[], tolds boolean[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF NOT imd_proven(fence_, token_, holder_) THEN
    RETURN false;
  END IF;
  PERFORM 1 FROM push p JOIN unnest(users, convs) AS u (who, conv) ON p.user_id = u.who AND p.conversation_id = u.conv
    ORDER BY p.user_id, p.conversation_id FOR NO KEY UPDATE OF p;
  DELETE FROM push p USING unnest(users, convs, seqs, states, nexts) AS u (who, conv, seq, state, next)
    WHERE p.user_id = u.who AND p.conversation_id = u.conv AND p.seq = u.seq AND p.state = u.state AND u.next = 0;
  UPDATE push p SET state = u.next, due_ms = u.due, tries = u.tries, told = p.told OR u.told
    FROM unnest(users, convs, seqs, states, nexts, dues, tries_, tolds) AS u (who, conv, seq, state, next, due, tries, told)
    WHERE p.user_id = u.who AND p.conversation_id = u.conv AND p.seq = u.seq AND p.state = u.state AND u.next > 0;
  UPDATE push p SET due_ms = greatest(p.due_ms, u.due), told = true
    FROM unnest(users, convs, seqs, states, dues, tolds) AS u (who, conv, seq, state, due, told)
    WHERE p.user_id = u.who AND p.conversation_id = u.conv AND p.seq > u.seq AND p.state = 1 AND u.state = 1 AND u.told;
  INSERT INTO push (user_id, conversation_id, seq, message_id, at_ms, due_ms, tries, state, sender)
    SELECT u.who, u.conv, u.seq, u.id, imd_now_ms(), imd_now_ms(), 0, 3, u.sender
      FROM unnest(users, convs, seqs, states, ids, senders, tolds) AS u (who, conv, seq, state, id, sender, told) WHERE u.state = 1 AND u.told
      ORDER BY u.who, u.conv
    ON CONFLICT (user_id, conversation_id) DO NOTHING;
  RETURN true;
END $$;
-- +goose StatementEnd

-- The same for nodes of the version before, which say of no try whether the user may
-- have been told by it: all that keep the row may have.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION imd_settle_pushes(fence_ text, token_ bigint, holder_ text, users text[], convs text[], seqs bigint[], states smallint[], nexts smallint[],
  dues bigint[], tries_ integer[], ids bigint[], senders text[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN imd_settle_pushes(fence_, token_, holder_, users, convs, seqs, states, nexts, dues, tries_, ids, senders,
    ARRAY(SELECT u.state = 1 AND (u.next = 2 OR u.next > 0 AND u.tries > 0)
      FROM unnest(states, nexts, tries_) WITH ORDINALITY AS u (state, next, tries, n) ORDER BY u.n));
END $$;
-- +goose StatementEnd

-- mute keeps pushes of a conversation away from a member until a time, and drops
-- what is due; a time that is past lifts it. false if the user is no member. The
-- mark of what the user may have been told stays, to be withdrawn.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION imd_mute(who_ text, conv_ text, until_ bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM member m WHERE m.user_id = who_ AND m.conversation_id = conv_ AND m.role > 0;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF until_ <= imd_now_ms() THEN
    DELETE FROM mute m WHERE m.user_id = who_ AND m.conversation_id = conv_;
    RETURN true;
  END IF;
  INSERT INTO mute AS m (user_id, conversation_id, until_ms) VALUES (who_, conv_, until_)
    ON CONFLICT (user_id, conversation_id) DO UPDATE SET until_ms = excluded.until_ms;
  DELETE FROM push p WHERE p.user_id = who_ AND p.conversation_id = conv_ AND p.state IN (1, 4) AND NOT p.told;
  UPDATE push p SET state = 2 WHERE p.user_id = who_ AND p.conversation_id = conv_ AND p.state IN (1, 4);
  RETURN true;
END $$;
-- +goose StatementEnd
