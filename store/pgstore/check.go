package pgstore

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cardvault/cardvault/store"
)

// The server keeps its own indexes. What pgstore keeps besides, the tables lookups and counts, is
// compared with the records here, partition by partition.
const (
	checkRecords = iota // each has its hashes in lookups
	checkLookups        // each leads to a record
	checkCounts         // each block of a list counts its records
	checks
)

const maxPlace = 2 + 2 + 16 + store.MaxLookup

// checkStatements are the texts that compare tables, and mend them.
type checkStatements struct {
	records, lookups, counts string
	mends
}

type mends struct{ on, off, recount, uncount, unleveled string }

const isReadable = `"cardvault".readable(r.class, coalesce(r.due, pg_catalog.now()), r.lookup)`

// Conditions of rows below a block p of a list.
const (
	ofBlock = `c.scope = p.scope AND c.child = p.child AND c.kind = p.kind`
	inBlock = `r.scope = p.scope AND r.child = p.child AND r.kind = p.kind AND (r.child OR r.class <> 0) AND r.class <> 0 AND r.id >= p.first AND r.id < p.next`
)

var compareStatements = checkStatements{
	records: `SELECT r.kind, r.id, r.account, r.lookup, CASE WHEN pg_catalog.octet_length(r.lookup) > 0 AND ` + isReadable + ` THEN ARRAY(
			WITH RECURSIVE h(at) AS (SELECT 0 WHERE pg_catalog.octet_length(r.lookup) > 0
				UNION ALL SELECT h.at OPERATOR(pg_catalog.+) 1 OPERATOR(pg_catalog.+) pg_catalog.get_byte(r.lookup, h.at) FROM h
					WHERE h.at OPERATOR(pg_catalog.+) 1 OPERATOR(pg_catalog.+) pg_catalog.get_byte(r.lookup, h.at) < pg_catalog.octet_length(r.lookup))
			SELECT DISTINCT x.hash FROM (SELECT pg_catalog.substr(r.lookup, h.at OPERATOR(pg_catalog.+) 2, pg_catalog.get_byte(r.lookup, h.at)) AS hash FROM h) AS x
			WHERE NOT EXISTS (SELECT FROM "cardvault".lookups l WHERE l.kind = r.kind AND l.hash = x.hash AND l.id = r.id)
		) END
		FROM (SELECT * FROM "cardvault".records x WHERE (x.kind, x.id) > ($1::smallint, $2::pg_catalog.uuid) ORDER BY x.kind, x.id LIMIT $3) AS r
		ORDER BY r.kind, r.id`,
	lookups: `SELECT l.kind, l.hash, l.id, r.account, r.lookup, r.id IS NULL OR ` + isReadable + `
		FROM (SELECT * FROM "cardvault".lookups y WHERE (y.kind, y.hash, y.id) > ($1::smallint, $2::bytea, $3::pg_catalog.uuid)
			ORDER BY y.kind, y.hash, y.id LIMIT $4) AS l
		LEFT JOIN LATERAL (SELECT * FROM "cardvault".records x WHERE x.kind = l.kind AND x.id = l.id OFFSET 0) AS r ON true
		ORDER BY l.kind, l.hash, l.id`,
	// A block begins with a row of class 0, and the first one of a level with the least id. A
	// run of level 2 begins with a block, and the last of each level counts nothing.
	counts: `SELECT p.scope, p.child, p.kind, p.level, p.first,
			p.level < 1 OR p.level > 2
			OR NOT EXISTS (SELECT FROM "cardvault".counts c WHERE ` + ofBlock + ` AND c.level = p.level AND c.first = p.first AND c.class = 0)
			OR p.first > '00000000-0000-0000-0000-000000000000' AND NOT EXISTS (
				SELECT FROM "cardvault".counts c WHERE ` + ofBlock + ` AND c.level = p.level AND c.first < p.first)
			OR p.level = 2 AND NOT EXISTS (SELECT FROM "cardvault".counts c WHERE ` + ofBlock + ` AND c.level = 1 AND c.first = p.first),
			EXISTS (SELECT FROM (
				SELECT c.class, c.n FROM "cardvault".counts c WHERE ` + ofBlock + ` AND c.level = p.level AND c.first = p.first AND c.class <> 0
				UNION ALL SELECT r.class, -1 FROM "cardvault".records r WHERE p.level = 1 AND ` + inBlock + `
				UNION ALL SELECT c.class, OPERATOR(pg_catalog.-) c.n FROM "cardvault".counts c
					WHERE p.level = 2 AND ` + ofBlock + ` AND c.level = 1 AND c.class <> 0 AND c.first >= p.first AND c.first < p.next
				) AS e GROUP BY e.class HAVING pg_catalog.sum(e.n) <> 0)
		FROM (SELECT b.*, (SELECT c.first FROM "cardvault".counts c WHERE c.scope = b.scope AND c.child = b.child AND c.kind = b.kind
				AND c.level = b.level AND c.first > b.first ORDER BY c.first LIMIT 1) AS next
			FROM (SELECT DISTINCT c.scope, c.child, c.kind, c.level, c.first FROM "cardvault".counts c
				WHERE (c.scope, c.child, c.kind, c.level, c.first) > ($1::pg_catalog.uuid, $2::boolean, $3::smallint, $4::smallint, $5::pg_catalog.uuid)
				ORDER BY c.scope, c.child, c.kind, c.level, c.first LIMIT $6) AS b) AS p
		ORDER BY p.scope, p.child, p.kind, p.level, p.first`,
}

var mendStatements = mends{
	// A row that has changed since it was compared stays: it agrees by now. recount is for the block of
	// a level that has an id.
	on: `INSERT INTO "cardvault".lookups (kind, hash, id) SELECT k.kind, k.hash, k.id
		FROM ROWS FROM (pg_catalog.unnest($1::smallint[]), pg_catalog.unnest($2::bytea[]), pg_catalog.unnest($3::pg_catalog.uuid[]), pg_catalog.unnest($4::bytea[])) AS k(kind, hash, id, lookup)
		JOIN "cardvault".records r ON r.kind = k.kind AND r.id = k.id AND r.lookup = k.lookup ON CONFLICT DO NOTHING`,
	off: `DELETE FROM "cardvault".lookups l
		USING ROWS FROM (pg_catalog.unnest($1::smallint[]), pg_catalog.unnest($2::bytea[]), pg_catalog.unnest($3::pg_catalog.uuid[]), pg_catalog.unnest($4::bytea[])) AS k(kind, hash, id, lookup)
		WHERE l.kind = k.kind AND l.hash = k.hash AND l.id = k.id
			AND coalesce((SELECT r.lookup FROM "cardvault".records r WHERE r.kind = l.kind AND r.id = l.id), '\x'::bytea) = coalesce(k.lookup, '\x'::bytea)`,
	recount: `WITH p AS MATERIALIZED (SELECT b.*, (SELECT c.first FROM "cardvault".counts c WHERE c.scope = b.scope AND c.child = b.child AND c.kind = b.kind
				AND c.level = b.level AND c.first > b.first ORDER BY c.first LIMIT 1) AS next
			FROM (SELECT c.scope, c.child, c.kind, c.level, c.first FROM "cardvault".counts c
				WHERE c.scope = $1 AND c.child = $2 AND c.kind = $3 AND c.level = $4 AND c.first <= $5 AND c.class = 0 ORDER BY c.first DESC LIMIT 1) AS b
		), gone AS (
			DELETE FROM "cardvault".counts c USING p WHERE ` + ofBlock + ` AND c.level = p.level AND c.first = p.first AND c.class <> 0
		)
		INSERT INTO "cardvault".counts (kind, child, scope, level, first, class, n)
			SELECT p.kind, p.child, p.scope, p.level, p.first, e.class, e.n FROM p CROSS JOIN LATERAL (
				SELECT r.class, pg_catalog.count(*) AS n FROM "cardvault".records r WHERE p.level = 1 AND ` + inBlock + ` GROUP BY r.class
				UNION ALL SELECT c.class, pg_catalog.sum(c.n)::bigint FROM "cardvault".counts c
					WHERE p.level = 2 AND ` + ofBlock + ` AND c.level = 1 AND c.class <> 0 AND c.first >= p.first AND c.first < p.next
					GROUP BY c.class HAVING pg_catalog.sum(c.n) <> 0) AS e`,
	// The last blocks of a list become a single block, which counts nothing. The blocks before them keep their counts.
	uncount: `WITH x AS MATERIALIZED (SELECT coalesce((SELECT e.first FROM (
			SELECT c.first FROM "cardvault".counts c WHERE c.scope = $1 AND c.child = $2 AND c.kind = $3 AND c.level = 1 ORDER BY c.first DESC LIMIT $4
			) AS e ORDER BY e.first LIMIT 1), '00000000-0000-0000-0000-000000000000'::pg_catalog.uuid) AS first
		), last AS MATERIALIZED (SELECT l.level, b.first FROM x CROSS JOIN (VALUES (1::smallint), (2::smallint)) AS l(level) CROSS JOIN LATERAL (
			SELECT c.first FROM "cardvault".counts c WHERE c.scope = $1 AND c.child = $2 AND c.kind = $3
				AND c.level = l.level AND c.first < x.first ORDER BY c.first DESC LIMIT 1) AS b
		), counted AS (
			DELETE FROM "cardvault".counts c USING last l WHERE c.scope = $1 AND c.child = $2 AND c.kind = $3
				AND c.level = l.level AND c.first = l.first AND c.class <> 0
		)
		DELETE FROM "cardvault".counts c USING x WHERE c.scope = $1 AND c.child = $2 AND c.kind = $3
			AND (c.level = 1 OR c.level = 2) AND c.first >= x.first`,
	unleveled: `DELETE FROM "cardvault".counts c WHERE c.ctid = ANY (ARRAY(SELECT d.ctid FROM "cardvault".counts d
		WHERE d.scope = $1 AND d.child = $2 AND d.kind = $3 AND (d.level < 1 OR d.level > 2) LIMIT $4))`,
}

// checkStatementsOf returns the statements for a partition, or for a schema without.
func checkStatementsOf(schema string, part int) checkStatements {
	s := compareStatements
	s.mends = mendStatements
	if part != whole {
		s.records = strings.Replace(s.records, "l.id = r.id", "l.id = r.id AND l.account = r.account", 1)
		s.lookups = strings.Replace(s.lookups, "x.id = l.id", "x.id = l.id AND x.account = l.account", 1)
		s.on = strings.Replace(strings.Replace(s.on, "(kind, hash, id)", "(kind, hash, id, account)", 1), "k.id\n", "k.id, r.account\n", 1)
		s.off = strings.Replace(s.off, "r.id = l.id", "r.id = l.id AND r.account = l.account", 1)
	}
	for _, text := range []*string{&s.records, &s.lookups, &s.counts, &s.on, &s.off, &s.recount, &s.uncount, &s.unleveled} {
		*text = in(schema, builtIn(strings.ReplaceAll(inPartition(*text, part), " >= ", " OPERATOR(pg_catalog.>=) ")))
	}
	return s
}

// A looked row was looked at by a check.
type looked struct {
	kind        int16
	id, account uuid.UUID // of the record
	hash        []byte
	lookup      []byte   // all hashes of the record; nil: it is absent
	missing     [][]byte // hashes without a row in lookups
	fault       store.Fault

	list  listKey // of a block
	level int16
	first uuid.UUID
	shape bool // the block is not where it may be, or has not the rows that each has
}

// A piece is what one step of a check looks at.
type piece struct {
	phase, part byte
	rows        []looked
}

// pieceAt asks for the piece at a place, and returns the next place.
func (r *reader) pieceAt(place []byte, limit int) (p *piece, next []byte, err error) {
	r.mustLive()
	if place == nil {
		place = []byte{checkRecords, 0}
	}
	parts := max(1, len(r.server.parts))
	if len(place) < 2 || len(place) > maxPlace || place[0] >= checks || int(place[1]) >= parts {
		return nil, nil, store.ErrInvalid
	}

	p = &piece{phase: place[0], part: place[1]}
	if limit = max(1, limit); p.phase == checkCounts {
		limit = max(1, limit/64) // each has some hundred rows
	}
	q := r.server.checkOf(int(p.part)).question(p.phase, place[2:], limit)
	if q == nil {
		return nil, nil, store.ErrInvalid
	}
	a, err := r.ask(q)
	if err != nil {
		return nil, nil, err
	}
	p.rows = a.looked

	switch {
	case len(p.rows) == limit:
		next = append([]byte{p.phase, p.part}, p.rows[limit-1].place(p.phase)...)
	case p.phase+1 < checks:
		next = []byte{p.phase + 1, p.part}
	case int(p.part)+1 < parts:
		next = []byte{checkRecords, p.part + 1}
	}
	return p, next, nil
}

// checkOf returns the statements of a partition.
func (s *server) checkOf(part int) *checkStatements {
	if !s.divided() {
		return &s.sql.check
	}
	return &s.parts[part].check
}

// place returns the key of a row in a place.
func (l *looked) place(phase byte) []byte {
	kind := binary.BigEndian.AppendUint16(nil, uint16(l.kind))
	switch phase {
	case checkRecords:
		return append(kind, l.id[:]...)
	case checkLookups:
		return slices.Concat(kind, l.id[:], l.hash)
	}
	child := byte(0)
	if l.list.child {
		child = 1
	}
	kind = binary.BigEndian.AppendUint16([]byte{child}, uint16(l.kind))
	return slices.Concat(l.list.scope[:], kind, []byte{byte(l.level)}, l.first[:])
}

// question asks for the rows of a phase after a key. It returns nil for a malformed key.
func (s *checkStatements) question(phase byte, after []byte, limit int) *question {
	kind, id, hash := int16(-1<<15), uuid.Nil, []byte{}
	if phase == checkCounts {
		scope, child, level := uuid.Nil, false, int16(-1)
		switch len(after) {
		case 0:
		case 36:
			scope, child, kind = uuid.UUID(after), after[16] == 1, int16(binary.BigEndian.Uint16(after[17:]))
			level, id = int16(after[19]), uuid.UUID(after[20:])
		default:
			return nil
		}
		return &question{sql: s.counts, args: []any{pgUUID(scope), child, kind, level, pgUUID(id), count(limit)}, look: readBlock}
	}

	if len(after) > 0 {
		if len(after) < 18 || phase == checkRecords && len(after) > 18 {
			return nil
		}
		kind, id = int16(binary.BigEndian.Uint16(after)), uuid.UUID(after[2:])
		hash = append(hash, after[18:]...)
	}
	if phase == checkRecords {
		return &question{sql: s.records, args: []any{kind, pgUUID(id), count(limit)}, look: readRecord}
	}
	return &question{sql: s.lookups, args: []any{kind, hash, pgUUID(id), count(limit)}, look: readLookup}
}

func readRecord(rows pgx.Rows) (l looked, err error) {
	var id, account pgtype.UUID
	err = rows.Scan(&l.kind, &id, &account, &l.lookup, &l.missing)
	l.id, l.account = id.Bytes, account.Bytes
	if len(l.missing) > 0 {
		l.fault = store.FaultMissing
	}
	return l, err
}

func readLookup(rows pgx.Rows) (l looked, err error) {
	var id, account pgtype.UUID
	var legible bool
	err = rows.Scan(&l.kind, &l.hash, &id, &account, &l.lookup, &legible)
	l.id, l.account = id.Bytes, account.Bytes
	if err == nil && legible && !slices.ContainsFunc((&row{lookup: l.lookup}).hashes(), func(h []byte) bool { return string(h) == string(l.hash) }) {
		l.fault = store.FaultStray
	}
	return l, err
}

func readBlock(rows pgx.Rows) (l looked, err error) {
	var scope, first pgtype.UUID
	var wrong bool
	err = rows.Scan(&scope, &l.list.child, &l.kind, &l.level, &first, &l.shape, &wrong)
	l.list.kind, l.list.scope, l.first = store.Kind(l.kind), scope.Bytes, first.Bytes
	if !l.list.child {
		l.account = l.list.scope
	}
	if l.shape || wrong {
		l.fault = store.FaultOrder
	}
	return l, err
}

// Check implements [store.Checker].
func (r *reader) Check(place []byte, limit int) (found []store.Disagreement, next []byte, err error) {
	p, next, err := r.pieceAt(place, limit)
	if err != nil {
		return nil, nil, err
	}
	for _, l := range p.rows {
		if l.fault == 0 {
			continue
		}
		index := store.IndexLookup
		if p.phase == checkCounts {
			index = store.IndexList
		}
		for range max(1, len(l.missing)) {
			found = append(found, store.Disagreement{Index: index, Fault: l.fault, Key: store.Key{Kind: store.Kind(l.kind), ID: l.id}, Account: l.account})
		}
	}
	return found, next, nil
}
