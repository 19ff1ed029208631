-- +goose Up

-- The allocator "segment": a conversation belongs to a shard, a shard to one
-- process at a time, and that process numbers from memory.

-- Who owns each shard. Whoever writes in its name proves the fence: it holds the
-- row FOR SHARE with the fence it was given until it commits, so that the next
-- owner, who changes the row, comes after all of it and before none of it.
CREATE TABLE shard (
  id       integer PRIMARY KEY,
  node     text   COLLATE "C" NOT NULL, -- the owner; '' = nobody yet
  process  text   COLLATE "C" NOT NULL, -- which run of its program; later ones compare higher
  fence    bigint NOT NULL, -- rises by one with each owner
  cluster  text   NOT NULL, -- the etcd cluster that revision counts in
  revision bigint NOT NULL  -- of the view of the ring that named the owner
) WITH (fillfactor = 50);

INSERT INTO shard SELECT n, '', '', 0, '', 0 FROM generate_series(0, 1023) AS n;

-- Up to which seq numbers of a conversation were handed to owners. An owner
-- that takes a shard over goes on above it.
CREATE TABLE conversation_seq (
  conversation text    COLLATE "C" PRIMARY KEY,
  max_seq      bigint  NOT NULL,
  step         integer NOT NULL -- how many the newest segment has
) WITH (fillfactor = 50);

-- prove locks the rows of shards, which are sorted, for the rest of the
-- transaction, and fails with the code IM002 if one has another fence; the
-- detail lists these. Only FOR SHARE holds up the next owner; a weaker lock lets
-- an append slip in behind it.
-- +goose StatementBegin
CREATE FUNCTION imd_prove(shards integer[], fences bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  held integer[];
BEGIN
  SELECT array_agg(x.id) INTO held FROM (
    SELECT s.id FROM unnest(shards, fences) AS p (id, fence) JOIN shard s ON s.id = p.id AND s.fence = p.fence
      ORDER BY s.id FOR SHARE OF s) x;
  IF coalesce(cardinality(held), 0) < cardinality(shards) THEN
    RAISE SQLSTATE 'IM002' USING MESSAGE = 'a shard has another owner',
      DETAIL = array_to_string(ARRAY(SELECT unnest(shards) EXCEPT SELECT unnest(held)), ',');
  END IF;
END $$;
-- +goose StatementEnd

-- take makes a process the owner of shards, with the next fence. Only a view of
-- the ring that is newer than the one that named the owner may do so, or one of
-- another etcd, or a later run on the owner's node. With wait it waits for those
-- who hold a shard, for as long as lock_timeout allows; so it is for one shard
-- only. Without, shards that somebody holds are left out.
--
-- outcome: 0 taken, 1 another owner's, 2 held by its owner's writes. Nothing that
-- the owner will write may be read here: it counts from the commit on.
-- +goose StatementBegin
CREATE FUNCTION imd_take(wait boolean, shards integer[], node_ text, process_ text, cluster_ text, revision_ bigint)
RETURNS TABLE (id integer, outcome integer, fence bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  mine integer[];
BEGIN
  IF wait THEN
    PERFORM 1 FROM shard s WHERE s.id = ANY (shards) ORDER BY s.id FOR NO KEY UPDATE;
    mine := shards;
  ELSE
    mine := ARRAY(SELECT s.id FROM shard s WHERE s.id = ANY (shards) ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
  RETURN QUERY
  WITH taken AS (
    UPDATE shard s SET node = node_, process = process_, fence = s.fence + 1, cluster = cluster_, revision = revision_
      WHERE s.id = ANY (mine)
        AND (s.node = '' OR s.cluster <> cluster_ OR s.revision < revision_ OR s.node = node_ AND s.process <= process_ AND s.revision <= revision_)
      RETURNING s.id, s.fence
  )
  SELECT x.id, CASE WHEN t.id IS NOT NULL THEN 0 WHEN x.id = ANY (mine) THEN 1 ELSE 2 END, coalesce(t.fence, 0)
    FROM unnest(shards) AS x (id) LEFT JOIN taken t ON t.id = x.id;
END $$;
-- +goose StatementEnd

-- reserve hands the next segments of conversations to the owner of their shards:
-- counts numbers each, above everything that was handed out or written before.
-- Conversations whose row somebody holds are missing in the answer.
-- +goose StatementBegin
CREATE FUNCTION imd_reserve(shards integer[], fences bigint[], convs text[], counts bigint[])
RETURNS TABLE (conversation text, after bigint, upto bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  PERFORM imd_prove(shards, fences);
  INSERT INTO conversation_seq (conversation, max_seq, step)
    SELECT r.c, 0, 0 FROM unnest(convs) AS r (c)
      WHERE NOT EXISTS (SELECT 1 FROM conversation_seq q WHERE q.conversation = r.c) ORDER BY r.c
    ON CONFLICT DO NOTHING;
  RETURN QUERY
  WITH free AS MATERIALIZED (
    SELECT q.conversation FROM conversation_seq q WHERE q.conversation = ANY (convs) ORDER BY q.conversation FOR NO KEY UPDATE SKIP LOCKED
  )
  UPDATE conversation_seq q
    SET max_seq = greatest(q.max_seq, coalesce((SELECT c.head FROM conversation c WHERE c.id = q.conversation), 0)) + r.n, step = r.n
    FROM unnest(convs, counts) AS r (c, n) JOIN free f ON f.conversation = r.c
    WHERE q.conversation = r.c
    RETURNING q.conversation, q.max_seq - r.n, q.max_seq;
END $$;
-- +goose StatementEnd

-- overtaken fails because the head of a conversation is not below the number
-- that its owner would give next.
-- +goose StatementBegin
CREATE FUNCTION imd_overtaken(ci integer, head bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RAISE SQLSTATE 'IM003' USING MESSAGE = 'the conversation has moved past its number', DETAIL = ci || ',' || head;
END $$;
-- +goose StatementEnd

-- append is imd_append_transaction with numbers from the owner: firsts has, for
-- each of ids, what its first new row gets; the others follow one by one. shards
-- are those of ids, sorted, each once, and fences what the owner was given.
--
-- It stores nothing and fails with IM002 if a shard has another owner, and with
-- IM003 if a conversation's head is not below its number: an earlier call whose
-- answer was lost has come after all, and the numbers above it are to be used.
-- +goose StatementBegin
CREATE FUNCTION imd_append_segment(shards integer[], fences bigint[], firsts bigint[], make boolean, ids text[], patient text[], hasty text[], ci integer[],
  senders text[], peers text[], may_make smallint[], keys bytea[], hashes bytea[], message_ids bigint[], kinds smallint[], countables boolean[],
  targets bigint[], bodies bytea[])
RETURNS TABLE (o bigint, status integer, seq bigint, prev_seq bigint, message_id bigint, server_ms bigint, member_version bigint, hash bytea)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  nums bigint[]; heads bigint[]; versions bigint[]; closeds boolean[]; directs boolean[]; as_ text[]; bs text[];
  births integer[]; missing integer[]; locked boolean[];
  at_ms bigint; xid bigint;
BEGIN
  PERFORM imd_prove(shards, fences);
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
  ), placed AS (
    SELECT f.*, count(*) FILTER (WHERE f.verdict = 0) OVER (PARTITION BY f.ci ORDER BY f.o ROWS UNBOUNDED PRECEDING) AS n FROM found f
  ), numbered AS MATERIALIZED (
    SELECT p.*, CASE
        WHEN p.verdict <> 0 THEN NULL
        WHEN firsts[p.ci] <= heads[p.ci] THEN imd_overtaken(p.ci, heads[p.ci])
        ELSE firsts[p.ci] + p.n - 1
      END AS new_seq,
      CASE WHEN p.n = 1 THEN (firsts[p.ci] - heads[p.ci])::integer ELSE 1 END AS new_back
      FROM placed p
  ), ins AS (
    INSERT INTO entry (conv, seq, message_id, server_ms, back, kind, countable, sender, client_key, body_hash, body, target_seq)
      SELECT n.num, n.new_seq, n.message_id, at_ms, n.new_back, n.kind, n.countable, n.sender, n.key, n.hash, n.body, nullif(n.target, 0)
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
         CASE n.verdict WHEN 0 THEN n.new_seq - n.new_back ELSE n.had_seq - n.had_back END,
         CASE n.verdict WHEN 0 THEN n.message_id ELSE n.had_id END,
         CASE n.verdict WHEN 0 THEN at_ms ELSE n.had_ms END,
         versions[n.ci],
         CASE n.verdict WHEN 2 THEN n.had_hash END
    FROM numbered n;
END $$;
-- +goose StatementEnd
