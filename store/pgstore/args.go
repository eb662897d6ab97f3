package pgstore

import "github.com/jackc/pgx/v5/pgtype"

// The parameters of the functions in migrations. The fields have their names and their
// order, which args keeps.

// applyArgs are the parameters of apply. The migrations document them.
type applyArgs struct {
	patient   bool
	keys      []int64
	exclusive []bool

	readKind  []int16
	readID    []pgtype.UUID
	readStamp []pgtype.Int8

	ofStore  pgtype.UUID
	ofTurn   pgtype.Int8
	newStamp pgtype.Int8

	goneKind []int16
	goneID   []pgtype.UUID

	newKind    []int16
	newID      []pgtype.UUID
	newAccount []pgtype.UUID
	newScope   []pgtype.UUID
	newChild   []bool
	newClass   []int16
	newDue     []pgtype.Timestamptz
	newVersion []int64
	newLookup  [][]byte
	newShown   [][]byte
	newSecret  [][]byte

	changed int32

	offKind []int16
	offHash [][]byte
	offID   []pgtype.UUID

	onKind []int16
	onHash [][]byte
	onID   []pgtype.UUID

	listKind  []int16
	listChild []bool
	listScope []pgtype.UUID
	listLeast []pgtype.UUID

	entryList  []int32
	entryID    []pgtype.UUID
	entryClass []int16
	entryN     []int32

	// Of partitions only.
	readAccount []pgtype.UUID
	goneAccount []pgtype.UUID
	offAccount  []pgtype.UUID
	onAccount   []pgtype.UUID
	listPart    []int16
}

func (a *applyArgs) args(divided bool) []any {
	args := []any{
		a.patient, a.keys, a.exclusive,
		a.readKind, a.readID, a.readStamp,
		a.ofStore, a.ofTurn, a.newStamp,
		a.goneKind, a.goneID,
		a.newKind, a.newID, a.newAccount, a.newScope, a.newChild, a.newClass,
		a.newDue, a.newVersion, a.newLookup, a.newShown, a.newSecret,
		a.changed,
		a.offKind, a.offHash, a.offID,
		a.onKind, a.onHash, a.onID,
		a.listKind, a.listChild, a.listScope, a.listLeast,
		a.entryList, a.entryID, a.entryClass, a.entryN,
	}
	if divided {
		args = append(args, a.readAccount, a.goneAccount, a.offAccount, a.onAccount, a.listPart)
	}
	return args
}

// addArgs are the parameters of add.
type addArgs struct {
	keys []int64

	readKind  pgtype.Int2
	readID    pgtype.UUID
	readStamp pgtype.Int8
	alsoKind  pgtype.Int2
	alsoID    pgtype.UUID
	alsoStamp pgtype.Int8

	ofStore  pgtype.UUID
	ofTurn   int64
	newStamp int64

	newKind    int16
	newID      pgtype.UUID
	newAccount pgtype.UUID
	newScope   pgtype.UUID
	newChild   bool
	newClass   int16
	newDue     pgtype.Timestamptz
	newVersion int64
	newLookup  []byte
	newShown   []byte
	newSecret  []byte

	hashes [][]byte

	// Of partitions only.
	readAccount pgtype.UUID
	alsoAccount pgtype.UUID
	newPart     int16
}

func (a *addArgs) args(divided bool) []any {
	args := []any{
		a.keys,
		a.readKind, a.readID, a.readStamp,
		a.alsoKind, a.alsoID, a.alsoStamp,
		a.ofStore, a.ofTurn, a.newStamp,
		a.newKind, a.newID, a.newAccount, a.newScope, a.newChild, a.newClass,
		a.newDue, a.newVersion, a.newLookup, a.newShown, a.newSecret,
		a.hashes,
	}
	if divided {
		args = append(args, a.readAccount, a.alsoAccount, a.newPart)
	}
	return args
}

// listArgs are the parameters of list and, with a hash in place of counted, of list_hash.
type listArgs struct {
	ofKind     int16
	ofChild    bool
	ofScope    pgtype.UUID
	ofClass    []int16
	low        pgtype.UUID
	high       pgtype.UUID
	live       pgtype.Timestamptz
	descending bool
	skip       int64
	most       int64
	counted    bool
	ofHash     []byte // not nil: of list_hash
}

func (a *listArgs) args() []any {
	var last any = a.counted
	if a.ofHash != nil {
		last = a.ofHash
	}
	return []any{a.ofKind, a.ofChild, a.ofScope, a.ofClass, a.low, a.high, a.live, a.descending, a.skip, a.most, last}
}
