-- +goose Up

-- The functions are volatile and run under read committed: each statement sees
-- what was committed before it, so what comes after a lock sees the work of
-- whoever had the lock before. Each is one call without a transaction around it;
-- a client that stops in the middle holds nothing.

-- now_ms is the server time.
CREATE FUNCTION imd_now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
  $$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

-- xid is the number of the running transaction.
CREATE FUNCTION imd_xid() RETURNS bigint LANGUAGE sql VOLATILE AS
  $$ SELECT pg_current_xact_id()::text::bigint $$;

-- horizon is the number of the oldest transaction under way: all below it have
-- ended, and what they did is seen.
CREATE FUNCTION imd_horizon() RETURNS bigint LANGUAGE sql STABLE AS
  $$ SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint $$;

-- know makes users known.
CREATE FUNCTION imd_know(users text[], at_ms bigint) RETURNS void LANGUAGE sql AS $$
  INSERT INTO account (id, created_ms, disabled)
    SELECT d.u, at_ms, false FROM (SELECT DISTINCT unnest(users) COLLATE "C" AS u) d ORDER BY d.u
    ON CONFLICT (id) DO NOTHING
$$;

-- born makes the direct conversations of a batch that do not exist. Each is made
-- by its first row that may make it: may_make is 1 where the peer is given and
-- right, and the peer must not have blocked the sender. It returns the place of
-- that row for each conversation, 0 where there is none. It runs before the batch
-- locks anything, and all who make the same do it in the same order, so that
-- none waits for another in a circle.
-- +goose StatementBegin
CREATE FUNCTION imd_born(ids text[], ci integer[], senders text[], peers text[], may_make smallint[])
RETURNS integer[] LANGUAGE plpgsql AS $$
DECLARE
  births integer[];
  makers integer[];
  v bigint;
BEGIN
  SELECT array_agg(d.o ORDER BY d.ci) INTO makers FROM (
    SELECT DISTINCT ON (x.ci) x.ci, x.o::integer
      FROM unnest(ci, senders, peers, may_make) WITH ORDINALITY AS x (ci, sender, peer, may, o)
      WHERE x.may = 1 AND NOT EXISTS (SELECT 1 FROM conversation c WHERE c.id = ids[x.ci])
        AND NOT EXISTS (SELECT 1 FROM block b WHERE b.user_id = x.peer AND b.blocked = x.sender)
      ORDER BY x.ci, x.o) d;
  IF makers IS NULL THEN
    RETURN NULL;
  END IF;
  v := imd_xid();
  WITH made AS (
    INSERT INTO conversation AS c (id, kind, name, user_a, user_b, members, member_version, version, head_version)
      SELECT ids[ci[m.o]], 1, '', least(senders[m.o] COLLATE "C", peers[m.o] COLLATE "C"), greatest(senders[m.o] COLLATE "C", peers[m.o] COLLATE "C"), 2, 1, v, v
      FROM unnest(makers) AS m (o) -- sorted by id
      ON CONFLICT (id) DO NOTHING -- somebody else was faster
      RETURNING c.id
  )
  SELECT array_agg((SELECT m.o FROM unnest(makers) AS m (o) WHERE ids[ci[m.o]] = made.id)) INTO makers FROM made;
  IF makers IS NULL THEN
    RETURN NULL;
  END IF;
  PERFORM imd_know((SELECT array_agg(u) FROM (SELECT senders[m.o] FROM unnest(makers) AS m (o) UNION SELECT peers[m.o] FROM unnest(makers) AS m (o)) AS x (u)), imd_now_ms());
  INSERT INTO member (user_id, conversation_id, conv, role, first_seq, start_seq, end_seq, earlier, cleared, delivered, read, left_name, version)
    SELECT u, c.id, c.num, 1, 0, 0, 0, '', 0, 0, 0, '', v
    FROM unnest(makers) AS m (o) JOIN conversation c ON c.id = ids[ci[m.o]], unnest(ARRAY[senders[m.o], peers[m.o]]) AS u;
  births := array_fill(0, ARRAY[cardinality(ids)]);
  FOR i IN 1..cardinality(makers) LOOP
    births[ci[makers[i]]] := makers[i];
  END LOOP;
  RETURN births;
END $$;
-- +goose StatementEnd

-- append stores a batch of sends, numbering them under the locks of their
-- conversations, and answers each.
--
-- ids are the conversations, each once and sorted; all other arrays have one
-- element a row, sorted by ci, which says what of ids the row is for; no two
-- rows have the same conversation, sender and key. Each of ids is in patient or in
-- hasty: those of hasty that another transaction has locked are left out, for the
-- others the call waits.
--
-- make makes direct conversations that do not exist. Without it a row that could
-- make one fails the call with the code IM001: call again with it.
--
-- status: 0 stored now, 1 stored before, 2 stored before with another body, 3 not
-- a member, 4 closed, 5 blocked, 6 a wrong peer, 7 locked by another. o is the
-- place of the row; hash is that of the other body.
-- +goose StatementBegin
CREATE FUNCTION imd_append_transaction(make boolean, ids text[], patient text[], hasty text[], ci integer[], senders text[], peers text[], may_make smallint[],
  keys bytea[], hashes bytea[], message_ids bigint[], kinds smallint[], countables boolean[], targets bigint[], bodies bytea[])
RETURNS TABLE (o bigint, status integer, seq bigint, prev_seq bigint, message_id bigint, server_ms bigint, member_version bigint, hash bytea)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  nums bigint[]; heads bigint[]; versions bigint[]; closeds boolean[]; directs boolean[]; as_ text[]; bs text[];
  births integer[]; missing integer[]; locked boolean[];
  at_ms bigint; xid bigint;
BEGIN
  IF make THEN
    births := imd_born(ids, ci, senders, peers, may_make);
  END IF;
  SELECT array_agg(c.num ORDER BY i.n), array_agg(c.head ORDER BY i.n), array_agg(c.member_version ORDER BY i.n), array_agg(c.closed ORDER BY i.n),
         array_agg(c.kind = 1 ORDER BY i.n), array_agg(c.user_a ORDER BY i.n), array_agg(c.user_b ORDER BY i.n),
         array_agg(i.n::integer ORDER BY i.n) FILTER (WHERE c.num IS NULL)
    INTO nums, heads, versions, closeds, directs, as_, bs, missing
    FROM unnest(ids) WITH ORDINALITY AS i (id, n)
    LEFT JOIN (
      SELECT * FROM (SELECT * FROM conversation x WHERE x.id = ANY (patient) ORDER BY x.id FOR NO KEY UPDATE) p
      UNION ALL
      SELECT * FROM (SELECT * FROM conversation x WHERE x.id = ANY (hasty) FOR NO KEY UPDATE SKIP LOCKED) h
    ) c ON c.id = i.id;
  IF cardinality(hasty) > 0 AND missing IS NOT NULL THEN
    SELECT array_agg(nums[i.n] IS NULL AND EXISTS (SELECT 1 FROM conversation c WHERE c.id = i.id) ORDER BY i.n) INTO locked
      FROM unnest(ids) WITH ORDINALITY AS i (id, n);
    SELECT array_agg(i.n::integer ORDER BY i.n) INTO missing
      FROM generate_subscripts(ids, 1) AS i (n) WHERE nums[i.n] IS NULL AND NOT locked[i.n];
  END IF;
  IF NOT make AND EXISTS (SELECT 1 FROM unnest(ci, may_make) AS x (ci, may) WHERE x.may = 1 AND x.ci = ANY (missing)) THEN
    RAISE SQLSTATE 'IM001' USING MESSAGE = 'a conversation is to be made';
  END IF;
  at_ms := imd_now_ms();
  xid := imd_xid();

  RETURN QUERY
  WITH found AS (
    SELECT r.*, nums[r.ci] AS num, e.seq AS had_seq, e.back AS had_back, e.message_id AS had_id, e.server_ms AS had_ms, e.body_hash AS had_hash,
      CASE
        WHEN locked[r.ci] THEN 7
        WHEN nums[r.ci] IS NULL OR r.o < births[r.ci] THEN
          CASE r.may WHEN 2 THEN 6 WHEN 1 THEN 5 ELSE 3 END -- who may make it and did not is blocked
        WHEN e.seq IS NOT NULL THEN CASE WHEN e.body_hash IS NOT DISTINCT FROM r.hash THEN 1 ELSE 2 END
        WHEN r.sender = '' THEN CASE WHEN closeds[r.ci] THEN 4 ELSE 0 END
        WHEN directs[r.ci] THEN
          CASE WHEN r.sender <> as_[r.ci] AND r.sender <> bs[r.ci] THEN 3
               WHEN EXISTS (SELECT 1 FROM block b WHERE b.blocked = r.sender
                 AND b.user_id = CASE WHEN r.sender = as_[r.ci] THEN bs[r.ci] ELSE as_[r.ci] END) THEN 5
               ELSE 0 END
        WHEN NOT EXISTS (SELECT 1 FROM member m WHERE m.user_id = r.sender AND m.conversation_id = ids[r.ci] AND m.role > 0) THEN 3
        WHEN closeds[r.ci] THEN 4
        ELSE 0
      END AS verdict
    FROM unnest(ci, senders, may_make, keys, hashes, message_ids, kinds, countables, targets, bodies)
      WITH ORDINALITY AS r (ci, sender, may, key, hash, message_id, kind, countable, target, body, o)
    LEFT JOIN LATERAL (SELECT * FROM entry x WHERE x.conv = nums[r.ci] AND x.sender = r.sender AND x.client_key = r.key) e ON true
  ), numbered AS MATERIALIZED (
    SELECT f.*, heads[f.ci] + count(*) FILTER (WHERE f.verdict = 0) OVER (PARTITION BY f.ci ORDER BY f.o ROWS UNBOUNDED PRECEDING) AS new_seq FROM found f
  ), ins AS (
    INSERT INTO entry (conv, seq, message_id, server_ms, back, kind, countable, sender, client_key, body_hash, body, target_seq)
      SELECT n.num, n.new_seq, n.message_id, at_ms, 1, n.kind, n.countable, n.sender, n.key, n.hash, n.body, nullif(n.target, 0)
      FROM numbered n WHERE n.verdict = 0
  ), moved AS (
    UPDATE conversation c SET head = m.top, version = xid, head_version = xid
      FROM (SELECT n.num, max(n.new_seq) AS top FROM numbered n WHERE n.verdict = 0 GROUP BY n.num) m
      WHERE c.num = m.num
  ), stamped AS ( -- last, so that whoever has the row waits for nothing but the commit
    UPDATE slot SET newest_ms = greatest(newest_ms, at_ms)
      WHERE id = pg_backend_pid() % 64 AND EXISTS (SELECT 1 FROM numbered n WHERE n.verdict = 0)
  )
  SELECT n.o, n.verdict,
         CASE n.verdict WHEN 0 THEN n.new_seq ELSE n.had_seq END,
         CASE n.verdict WHEN 0 THEN n.new_seq - 1 ELSE n.had_seq - n.had_back END,
         CASE n.verdict WHEN 0 THEN n.message_id ELSE n.had_id END,
         CASE n.verdict WHEN 0 THEN at_ms ELSE n.had_ms END,
         versions[n.ci],
         CASE n.verdict WHEN 2 THEN n.had_hash END
    FROM numbered n;
END $$;
-- +goose StatementEnd

-- mark moves positions of present members up and never past the head.
-- +goose StatementBegin
CREATE FUNCTION imd_mark(convs text[], users text[], delivereds bigint[], reads bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM member m JOIN unnest(convs, users) AS p (conv, who) ON m.user_id = p.who AND m.conversation_id = p.conv
    ORDER BY m.user_id, m.conversation_id FOR NO KEY UPDATE OF m;
  UPDATE member m SET read = x.read, delivered = x.delivered, version = imd_xid()
    FROM (
      SELECT y.user_id, y.conversation_id, y.read, greatest(y.was, y.start, y.read, y.wanted) AS delivered
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
    WHERE m.user_id = x.user_id AND m.conversation_id = x.conversation_id;
END $$;
-- +goose StatementEnd

-- claim gives out the next token of a fence. It waits for transactions that have
-- proved the former one.
-- +goose StatementBegin
CREATE FUNCTION imd_claim(name_ text, holder_ text, cluster_ text, revision_ bigint, over_ bigint)
RETURNS TABLE (given boolean, token bigint, holder text, cluster text, revision bigint, claimed_ms bigint) LANGUAGE plpgsql AS $$
DECLARE
  had fence%ROWTYPE;
BEGIN
  INSERT INTO fence AS f VALUES (name_, 1, holder_, cluster_, revision_, imd_now_ms()) ON CONFLICT DO NOTHING;
  IF FOUND THEN
    RETURN QUERY SELECT true, f.token, f.holder, f.cluster, f.revision, f.claimed_ms FROM fence f WHERE f.name = name_;
    RETURN;
  END IF;
  SELECT * INTO had FROM fence f WHERE f.name = name_ FOR UPDATE;
  IF had.cluster = cluster_ AND had.revision = revision_ AND had.holder = holder_ THEN -- the same claim once more
    RETURN QUERY SELECT true, had.token, had.holder, had.cluster, had.revision, had.claimed_ms;
  ELSIF had.token <> over_ AND had.cluster = cluster_ AND had.revision >= revision_ THEN
    RETURN QUERY SELECT false, had.token, had.holder, had.cluster, had.revision, had.claimed_ms;
  ELSE
    RETURN QUERY UPDATE fence f SET token = had.token + 1, holder = holder_, cluster = cluster_, revision = revision_, claimed_ms = imd_now_ms()
      WHERE f.name = name_ RETURNING true, f.token, f.holder, f.cluster, f.revision, f.claimed_ms;
  END IF;
END $$;
-- +goose StatementEnd

-- expire removes revocations that no longer hold at now_, if the fence still is
-- as the caller says; -1 if it is not.
-- +goose StatementBegin
CREATE FUNCTION imd_expire(name_ text, token_ bigint, holder_ text, at_ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  n bigint;
BEGIN
  PERFORM 1 FROM fence f WHERE f.name = name_ AND f.token = token_ AND f.holder = holder_ FOR SHARE;
  IF NOT FOUND THEN
    RETURN -1;
  END IF;
  DELETE FROM revocation WHERE until_ms <= at_ms;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;
-- +goose StatementEnd
