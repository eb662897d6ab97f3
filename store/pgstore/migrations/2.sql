-- Version 2: due records are found by shard, which is the lowest bits of the id.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE INDEX records_shard ON "cardvault".records (kind, (get_byte(uuid_send(id), 15) & 15), due, id) WHERE due IS NOT NULL;
