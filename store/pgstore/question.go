package pgstore

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cardvault/cardvault/store"
)

// tooMany is the total of a list of more than store.MaxShared records that have a hash.
const tooMany = -1

// A question is one read: a statement whose answer one snapshot gives.
type question struct {
	sql    string
	args   []any
	lookup *hashKey  // what must not change for the answer to hold: one of these
	list   *listKey  // also if its part with a hash is asked for
	high   uuid.UUID // of a list: no greater id is asked for
	parent uuid.UUID // whose children are asked for
	scan   store.Kind
	empty  bool
	due    store.Kind
	next   bool                           // asks for a time only
	claims bool                           // locks rows, and skips rows that others have locked
	desc   bool                           // the answer is in the reverse of the statement's order
	look   func(pgx.Rows) (looked, error) // of a check
}

type hashKey struct {
	kind store.Kind
	hash string
}

// name is the same for questions that ask the same.
func (q *question) name() string { return fmt.Sprint(q.sql, q.args) }

// An answer is what a question found.
type answer struct {
	rows  []*row
	keys  []store.Key // of children
	total int64       // of a list; of Empty 1 if there is a record
	tail  int64       // of a list: records that were counted one by one
	next  pgtype.Timestamptz

	looked []looked // of a check
}

// same reports whether two answers show the same state, as far as they reveal it.
func (a *answer) same(b *answer) bool {
	return a.total == b.total && slices.Equal(a.keys, b.keys) && a.next.Valid == b.next.Valid && a.next.Time.Equal(b.next.Time) &&
		slices.EqualFunc(a.rows, b.rows, func(a, b *row) bool { return a.kind == b.kind && a.id == b.id && a.stamp == b.stamp }) &&
		fmt.Sprint(a.looked) == fmt.Sprint(b.looked)
}

// statements are the texts of a schema.
type statements struct {
	get, lookup, due, claim, next                string
	dueOf, claimOf, nextOf                       string // of some shards
	list, hashed                                 string
	scan, children, empty                        string
	rows                                         string
	apply, add, lock, arrange, settle, tidy, old string
	seed, holders, hash                          string

	check checkStatements
}

// statementsOf returns the statements of a schema for a partition, or for the whole of it.
func statementsOf(schema string, part int) *statements {
	due := `SELECT ` + columns + ` FROM "cardvault".records r WHERE r.kind = $1 AND r.due <= $2
		AND "cardvault".readable(r.class, r.due, r.lookup) ORDER BY r.due, r.id LIMIT $3`

	// One walk of records_shard for each shard.
	inShard := `FROM "cardvault".records r WHERE r.kind = $1
		AND (pg_catalog.get_byte(pg_catalog.uuid_send(r.id), 15) & 15) = s.shard AND r.due <= $2 AND "cardvault".readable(r.class, r.due, r.lookup)`
	dueOf := `SELECT r.* FROM pg_catalog.unnest($4::integer[]) AS s(shard)
		CROSS JOIN LATERAL (SELECT ` + columns + ` ` + inShard + ` ORDER BY r.due, r.id LIMIT $3%s) AS r ORDER BY r.due, r.id LIMIT $3`

	// Rows are found by their primary key, whatever the planner expects of a table that
	// was empty when it looked: OFFSET 0 keeps it from joining in another way.
	list := `SELECT l.total, l.tail, $1::smallint, r.id, r.account, r.scope, r.child, r.class, r.due, r.version, r.stamp, r.lookup, r.shown
		FROM "cardvault".%s($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS l
		LEFT JOIN LATERAL (SELECT r.* FROM pg_catalog.unnest(l.ids) AS i(id)
			CROSS JOIN LATERAL (SELECT * FROM "cardvault".records x WHERE x.kind = $1 AND x.id = i.id OFFSET 0) AS r) AS r ON true
		ORDER BY r.id`

	s := &statements{
		get: `SELECT ` + columns + ` FROM "cardvault".records r WHERE r.kind = $1 AND r.id = $2`,
		lookup: `SELECT ` + columns + ` FROM "cardvault".lookups l
			CROSS JOIN LATERAL (SELECT * FROM "cardvault".records x WHERE x.kind = l.kind AND x.id = l.id OFFSET 0) AS r
			WHERE l.kind = $1 AND l.hash = $2 AND "cardvault".has(r.lookup, l.hash) ORDER BY l.id LIMIT $3`,
		due: due,
		// A row that has changed since the statement began is locked as it is now, out of order.
		claim: `SELECT * FROM (` + due + ` FOR UPDATE SKIP LOCKED) AS r ORDER BY r.due, r.id`,
		next: `SELECT r.due FROM "cardvault".records r WHERE r.kind = $1 AND r.due IS NOT NULL
			AND "cardvault".readable(r.class, r.due, r.lookup) ORDER BY r.due LIMIT 1`,
		dueOf:   fmt.Sprintf(dueOf, ""),
		claimOf: fmt.Sprintf(dueOf, " FOR UPDATE SKIP LOCKED"),
		nextOf: `SELECT pg_catalog.min(r.due) FROM pg_catalog.unnest($2::integer[]) AS s(shard)
			CROSS JOIN LATERAL (SELECT r.due ` + strings.ReplaceAll(inShard, "r.due <= $2", "r.due IS NOT NULL") + ` ORDER BY r.due LIMIT 1) AS r`,
		list:     fmt.Sprintf(list, "list"),
		hashed:   fmt.Sprintf(list, "list_hash"),
		scan:     `SELECT ` + columns + ` FROM "cardvault".records r WHERE r.kind = $1 AND r.id > $2 ORDER BY r.id LIMIT $3`,
		children: `SELECT c.kind, c.id FROM "cardvault".children($1, $2) AS c`,
		empty:    `SELECT pg_catalog.count(*) FROM (SELECT FROM "cardvault".records LIMIT 1) AS r`,
		rows: `SELECT ` + columns + ` FROM ROWS FROM (pg_catalog.unnest($1::smallint[]), pg_catalog.unnest($2::pg_catalog.uuid[])) AS k(kind, id)
			CROSS JOIN LATERAL (SELECT * FROM "cardvault".records x WHERE x.kind = k.kind AND x.id = k.id OFFSET 0) AS r`,
		apply:   callOf("apply", 37),
		add:     callOf("add", 22),
		lock:    `SELECT "cardvault".lock($1, $2, $3)`,
		arrange: `SELECT "cardvault".arrange($1, $2, $3, $4, $5, $6)`,
		settle:  `SELECT "cardvault".settle($1, $2)`,
		tidy:    `DELETE FROM "cardvault".groups WHERE store = $1 AND turn > $2 AND turn <= $3 AND done`,
		old: `DELETE FROM "cardvault".groups WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM "cardvault".groups WHERE at < (pg_catalog.now() - interval '1 day') LIMIT 10000))`,
		seed: `SELECT (SELECT s.seed FROM "cardvault".seed s WHERE (SELECT pg_catalog.count(*) FROM "cardvault".seed) = 1),
			pg_catalog.current_setting('synchronous_standby_names'), pg_catalog.has_database_privilege('public', d.oid, 'CONNECT')
			FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()`,
		// Only advisory locks, and locks of tables in modes that no writer takes.
		holders: `SELECT DISTINCT l.pid, a.usename::text FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
			WHERE l.granted AND (l.pid IS NULL OR l.pid <> pg_catalog.pg_backend_pid())
				AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
				AND (l.locktype = 'advisory' AND l.objsubid = 1 AND ((l.classid::bigint << 32) | l.objid::bigint) = ANY ($1)
					OR l.mode = ANY ('{ShareLock,ShareRowExclusiveLock,ExclusiveLock,AccessExclusiveLock}') AND l.relation = ANY (ARRAY(
						SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $2)))
			LIMIT 8`,
		hash: `SELECT pg_catalog.bool_and(pg_catalog.satisfies_hash_partition(r.tableoid, $1::integer, a.part, a.account))
			FROM ROWS FROM (pg_catalog.unnest($2::pg_catalog.uuid[]), pg_catalog.unnest($3::integer[])) AS a(account, part)
			CROSS JOIN (SELECT c.oid AS tableoid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
				WHERE n.nspname = $4 AND c.relname = 'records') AS r`,
	}
	if part != whole {
		s.lookup = strings.Replace(s.lookup, "WHERE l.kind = $1", "WHERE l.account = $4 AND r.account = $4 AND l.kind = $1", 1)
		s.children = strings.Replace(s.children, "$2", "$2, $3", 1)
	}
	for _, text := range []*string{&s.get, &s.lookup, &s.due, &s.claim, &s.next, &s.dueOf, &s.claimOf, &s.nextOf, &s.list, &s.hashed,
		&s.scan, &s.children, &s.empty, &s.rows,
		&s.apply, &s.add, &s.lock, &s.arrange, &s.settle, &s.tidy, &s.old, &s.seed, &s.holders, &s.hash} {
		*text = in(schema, builtIn(inPartition(*text, part)))
	}
	s.check = checkStatementsOf(schema, part)
	return s
}

// callOf returns a call of a function with so many parameters.
func callOf(function string, parameters int) string {
	places := make([]string, parameters)
	for i := range places {
		places[i] = "$" + strconv.Itoa(i+1)
	}
	return `SELECT "cardvault".` + function + "(" + strings.Join(places, ", ") + ")"
}

// sqlOf returns the statements of a schema for all accounts, and for those of each of n
// partitions.
func sqlOf(schema string, n int) (all *statements, parts []*statements) {
	all = statementsOf(schema, whole)
	if n == 0 {
		return all, nil
	}
	all.apply, all.add = in(schema, callOf("apply", 42)), in(schema, callOf("add", 25))
	all.lookup = in(schema, `SELECT `+columns+` FROM "cardvault".found($1, $2, $3) AS r`)
	all.scan = strings.Replace(all.scan, "SELECT ", "SELECT DISTINCT ON (r.id) ", 1) // a writer of rows may have put an id in two partitions
	for part := range n {
		parts = append(parts, statementsOf(schema, part))
	}
	return all, parts
}

func (s *statements) ofGet(kind store.Kind, id uuid.UUID) *question {
	return &question{sql: s.get, args: []any{int16(kind), pgUUID(id)}}
}

// ofLookup asks for records of any account. The statements of a partition are for one
// account: see ofLookupIn.
func (s *statements) ofLookup(kind store.Kind, hash []byte, limit int) *question {
	hash = append([]byte{}, hash...) // null would find nothing
	return &question{sql: s.lookup, args: []any{int16(kind), hash, count(limit)}, lookup: &hashKey{kind, string(hash)}}
}

func (s *statements) ofLookupIn(account uuid.UUID, kind store.Kind, hash []byte, limit int) *question {
	q := s.ofLookup(kind, hash, limit)
	q.args = append(q.args, pgUUID(account))
	return q
}

func (s *statements) ofDue(kind store.Kind, shards store.Shards, until time.Time, limit int, claims bool) *question {
	q := &question{sql: s.due, args: []any{int16(kind), timestamp(until), count(limit)}, due: kind, claims: claims}
	if shards != store.AllShards {
		q.args = append(q.args, numbersOf(shards))
	}

	switch {
	case claims && shards == store.AllShards:
		q.sql = s.claim
	case claims:
		q.sql = s.claimOf
	case shards != store.AllShards:
		q.sql = s.dueOf
	}
	return q
}

func (s *statements) ofNext(kind store.Kind, shards store.Shards) *question {
	if shards == store.AllShards {
		return &question{sql: s.next, args: []any{int16(kind)}, due: kind, next: true}
	}
	return &question{sql: s.nextOf, args: []any{int16(kind), numbersOf(shards)}, due: kind, next: true}
}

// numbersOf returns the shards of a set.
func numbersOf(shards store.Shards) (numbers []int32) {
	for shard := range uint8(store.ShardCount) {
		if shards.Has(shard) {
			numbers = append(numbers, int32(shard))
		}
	}
	return numbers
}

func (s *statements) ofScan(kind store.Kind, after uuid.UUID, limit int) *question {
	return &question{sql: s.scan, args: []any{int16(kind), pgUUID(after), count(limit)}, scan: kind}
}

func (s *statements) ofChildren(parent uuid.UUID, limit int) *question {
	return &question{sql: s.children, args: []any{pgUUID(parent), count(limit)}, parent: parent}
}

func (s *statements) ofChildrenIn(account, parent uuid.UUID, limit int) *question {
	q := s.ofChildren(parent, limit)
	q.args = append(q.args, pgUUID(account))
	return q
}

func (s *statements) ofEmpty() *question { return &question{sql: s.empty, empty: true} }

func (s *statements) ofList(q *store.Query, list listKey) *question {
	high, live := q.Max, pgtype.Timestamptz{}
	if high == uuid.Nil {
		high = uuid.Max
	}
	if !q.Live.IsZero() {
		live = timestamp(q.Live)
	}

	var classes []int16
	if q.Classes != (store.Classes{}) {
		classes = []int16{}
		for c := range 256 { // 0 too, that no record of a list has: else a set of it alone were all
			if q.Classes.Has(uint8(c)) {
				classes = append(classes, int16(c))
			}
		}
	}

	args := listArgs{
		ofKind: int16(q.Kind), ofChild: list.child, ofScope: pgUUID(list.scope), ofClass: classes,
		low: pgUUID(q.Min), high: pgUUID(high), live: live, descending: q.Desc,
		skip: min(max(0, q.Offset), 1<<60), most: count(q.Limit), counted: q.Count, ofHash: bytes.Clone(q.Lookup),
	}

	asked := &question{sql: s.list, args: args.args(), list: &list, high: high, desc: q.Desc}
	if q.Lookup != nil {
		asked.sql, asked.lookup = s.hashed, &hashKey{q.Kind, string(q.Lookup)} // writers to that list with the hash share this too
	}
	return asked
}

func count(limit int) int64 { return int64(min(max(0, limit), 1<<30)) }

// read reads the answer and closes rows.
func (q *question) read(rows pgx.Rows) (*answer, error) {
	defer rows.Close()
	a, s := new(answer), new(scanner)
	for rows.Next() {
		switch {
		case q.look != nil:
			l, err := q.look(rows)
			if err != nil {
				return nil, store.ErrDamaged
			}
			a.looked = append(a.looked, l)
			continue

		case q.next:
			if rows.Scan(&a.next) != nil {
				return nil, store.ErrDamaged
			}
			continue

		case q.empty:
			if rows.Scan(&a.total) != nil {
				return nil, store.ErrDamaged
			}
			continue

		case q.parent != uuid.Nil:
			var kind int16
			var id pgtype.UUID
			if rows.Scan(&kind, &id) != nil || kind < 1 || kind > 255 {
				return nil, store.ErrDamaged
			}
			a.keys = append(a.keys, store.Key{Kind: store.Kind(kind), ID: id.Bytes})
			continue

		case q.list != nil:
			s.lead = []any{&a.total, &a.tail}
			if rows.RawValues()[3] == nil { // no record, but a total
				if rows.Scan(append(s.lead, make([]any, len(rows.RawValues())-2)...)...) != nil {
					return nil, store.ErrDamaged
				}
				continue
			}
		}

		r, err := s.scan(rows)
		if err != nil {
			return nil, err
		}
		a.rows = append(a.rows, r)
	}

	if q.desc {
		slices.Reverse(a.rows)
	}
	return a, rows.Err()
}

// of reads the answer from the next result of a batch.
func (q *question) of(results pgx.BatchResults) (*answer, error) {
	rows, err := results.Query()
	if err != nil {
		return nil, err
	}
	return q.read(rows)
}
