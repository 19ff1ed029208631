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
CREATE OR REPLACE FUNCTION imd_append_transaction(make boolean, ids text[], patient text[], hasty text[], ci integer[], senders text[], peers text[], may_make smallint[],
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
  ), stamped AS ( -- first, which is done last: whoever has the row waits for nothing but the commit
    UPDATE slot SET newest_ms = greatest(newest_ms, at_ms)
      WHERE id = pg_backend_pid() % 64 AND EXISTS (SELECT 1 FROM numbered n WHERE n.verdict = 0)
  ), ins AS (
    INSERT INTO entry (conv, seq, message_id, server_ms, back, kind, countable, sender, client_key, body_hash, body, target_seq)
      SELECT n.num, n.new_seq, n.message_id, at_ms, 1, n.kind, n.countable, n.sender, n.key, n.hash, n.body, nullif(n.target, 0)
      FROM numbered n WHERE n.verdict = 0
  ), moved AS (
    UPDATE conversation c SET head = m.top, version = xid, head_version = xid
      FROM (SELECT n.num, max(n.new_seq) AS top FROM numbered n WHERE n.verdict = 0 GROUP BY n.num) m
      WHERE c.num = m.num
  ), fed AS (
    INSERT INTO feed (conv, low, high)
      SELECT n.num, min(n.new_seq) - 1, max(n.new_seq) FROM numbered n
        WHERE n.verdict = 0 AND (SELECT b.feeding FROM outbox b WHERE b.id = 1) GROUP BY n.num
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
