-- +goose Up

-- save_receiver stores where a receiver stands and what was settled with it. It
-- returns 0 if that is done, 1 if somebody else has moved the receiver, and -1 if
-- the fence is not any more as the caller says.
--
-- A push takes the place of an older one of its conversation. Tries above 0 remember
-- that its user may have been told of the older one, which is withdrawn when the
-- conversation is read. If the user was, the newer one waits until the pause is
-- over that the older one left in due_ms. Nothing is due of what is muted.
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
      due_ms = CASE p.state WHEN 2 THEN greatest(excluded.due_ms, p.due_ms) ELSE excluded.due_ms END,
      tries = CASE WHEN p.state IN (2, 3) OR p.tries > 0 THEN 1 ELSE 0 END, state = 1, sender = excluded.sender
      WHERE p.seq < excluded.seq;
  RETURN 0;
END $$;
-- +goose StatementEnd

-- settle_pushes stores what became of pushes, unless their rows have changed
-- since; false if the fence is not any more as the caller says. Next state 0 = the
-- row is not needed any more. A row that went while its user was told was read:
-- it comes back to be withdrawn. One that has got a newer message meanwhile
-- remembers that its user was told of the older one.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION imd_settle_pushes(fence_ text, token_ bigint, holder_ text, users text[], convs text[], seqs bigint[], states smallint[], nexts smallint[],
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
  UPDATE push p SET due_ms = greatest(p.due_ms, u.due), tries = greatest(p.tries, 1)
    FROM unnest(users, convs, seqs, states, nexts, dues) AS u (who, conv, seq, state, next, due)
    WHERE p.user_id = u.who AND p.conversation_id = u.conv AND p.seq > u.seq AND p.state = 1 AND u.state = 1 AND u.next = 2;
  INSERT INTO push (user_id, conversation_id, seq, message_id, at_ms, due_ms, tries, state, sender)
    SELECT u.who, u.conv, u.seq, u.id, imd_now_ms(), imd_now_ms(), 0, 3, u.sender
      FROM unnest(users, convs, seqs, states, nexts, ids, senders) AS u (who, conv, seq, state, next, id, sender) WHERE u.state = 1 AND u.next = 2
      ORDER BY u.who, u.conv
    ON CONFLICT (user_id, conversation_id) DO NOTHING;
  RETURN true;
END $$;
-- +goose StatementEnd

-- mute keeps pushes of a conversation away from a member until a time, and drops
-- what is due; a time that is past lifts it. false if the user is no member. The
-- mark of what the user may have been told stays, to be withdrawn.
-- +goose StatementBegin
CREATE FUNCTION imd_mute(who_ text, conv_ text, until_ bigint) RETURNS boolean LANGUAGE plpgsql AS $$
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
  DELETE FROM push p WHERE p.user_id = who_ AND p.conversation_id = conv_ AND p.state IN (1, 4) AND p.tries = 0;
  UPDATE push p SET state = 2 WHERE p.user_id = who_ AND p.conversation_id = conv_ AND p.state IN (1, 4);
  RETURN true;
END $$;
-- +goose StatementEnd
