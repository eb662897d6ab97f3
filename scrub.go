package cardvault

import "context"

// Scrub overwrites what deleted and changed records have left in the store, and returns when
// that is durable. A deleted record is gone from every answer at once, but a bbolt file keeps
// its sealed bytes in free pages. A vault in a folder overwrites them within a minute without a
// call; Scrub says when that is done. Records of a deleted token that [Vault.Run] is still
// erasing are left: [Vault.Drain] erases them first.
//
// It goes on beside other calls, and waits for reads that began before, such as a list. It does
// not reach backups, snapshots of the file system and blocks that the disk has replaced: see
// [Vault.RetireTerm].
//
// Errors: ErrNotEnabled if the store is not a store.Scrubber, such as pgstore, whose server
// has VACUUM for it; and errors of the store.
func (v *Vault) Scrub(ctx context.Context) (err error) {
	defer v.whole().doing(ctx, "scrub", &err)
	able, err := v.ledger.Scrub(ctx)
	if err == nil && !able {
		err = notEnabled("a store.Store that is a store.Scrubber")
	}
	return err
}
