package verify

// Problems is one more than the last problem.
const Problems = IndexStray + 1

// An Advice says for an operator what a problem means.
type Advice struct{ Name, Hurt, Safe, Remedy string }

const (
	restore   = "restore a backup of before elsewhere, and compare; or delete the record by its id"
	rebuild   = "repair the vault: that makes all indexes anew from the records. If the store cannot do that, back the vault up and restore the backup into an empty store"
	safeRows  = "all other records"
	safeSums  = "records of other accounts and kinds"
	safeIndex = "the content of all records"
)

var advices = [Problems]Advice{
	Unreadable:      {"unreadable", "calls on these records fail, or do not find them", safeRows, restore},
	Altered:         {"altered", "calls on these records return ErrDamaged", safeRows, restore},
	UnknownTerm:     {"unknown_term", "calls on these records return ErrDamaged", safeRows, "restore the keyring, or the record, from a backup: no key of the vault opens the record"},
	MissingPart:     {"missing_part", "calls on these records return ErrDamaged", safeRows, restore},
	MissingAccount:  {"missing_account", "no call reaches these records", safeRows, "restore the record of the account from a backup"},
	MissingParent:   {"missing_parent", "no call reaches these records, and nothing erases them", safeRows, "restore the lost record that these belong to from a backup"},
	ClosedAccount:   {"closed_account", "data of a closed account is in the store, although no call reaches it", safeRows, "find out who wrote these records behind the vault, and close the account again: that erases them"},
	Sum:             {"sum", "records of these kinds were lost, added, or put back as they were before: calls do not find them, or find what the vault has deleted or replaced", safeSums, "restore a backup of before elsewhere, and compare the records of the account and kind. Once they are as they should be, or were deleted because they were damaged, begin the sums anew"},
	IndexUnreadable: {"index_unreadable", "lists, lookups and background work fail or skip records", safeIndex, rebuild},
	IndexMissing:    {"index_missing", "lists, lookups or background work skip these records; calls by id find them", safeIndex, rebuild},
	IndexOrder:      {"index_order", "totals and pages of lists are wrong, or lists fail", safeIndex, rebuild},
	IndexStray:      {"index_stray", "totals may count a record that is not there, which may have been lost", safeRows, "look for the id in a backup: if the record was not deleted, restore it"},
}

// Advice returns the advice for a problem.
func (p Problem) Advice() Advice { return advices[p] }
