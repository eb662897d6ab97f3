package codes_test
import ("testing";"time";"context";"github.com/cardvault/cardvault/internal/codes")
func BenchmarkAdhocEvict(b *testing.B) {
	c := codes.New(100000, nil); defer c.Close()
	v := make([]byte,96)
	for n := range uint64(100000) { c.Put(context.Background(), id(n), v, time.Minute) }
	b.ReportAllocs(); b.ResetTimer()
	for n := range uint64(b.N) { c.Put(context.Background(), id(n+100000), v, time.Minute) }
}
func BenchmarkAdhocGet(b *testing.B) {
	c := codes.New(100000, nil); defer c.Close()
	v := make([]byte,96)
	for n := range uint64(100000) { c.Put(context.Background(), id(n), v, time.Minute) }
	b.ReportAllocs(); b.ResetTimer()
	for n := range uint64(b.N) { c.Get(context.Background(), id(n%100000)) }
}
