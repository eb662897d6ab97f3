package auditlog

import "testing"

// TestRoom: one account that takes places has at most half of them, and accounts that flood
// together leave some for others.
func TestRoom(t *testing.T) {
	const most = 8192
	for flooding := 1; flooding <= 64; flooding++ {
		held, taken := make([]int, flooding), 0
		for again := true; again; {
			again = false
			for i := range held {
				if roomFor(held[i], taken, most) {
					held[i]++
					taken++
					again = true
				}
			}
		}
		if left := most - taken; left < most/(flooding+1)-flooding || !roomFor(0, taken, most) {
			t.Errorf("%d accounts leave %d places", flooding, left)
		}
	}
}
