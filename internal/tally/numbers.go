package tally

// NumbersADay returns how many different numbers an account may pass in per day that differ
// only in so many digits. It allows so few of all such numbers that guessing takes years
// or, where there are hardly any, months. Each replica has its share.
func NumbersADay(unknown int, luhn bool, replicas int) int {
	candidates := 1
	for range unknown {
		candidates *= 10
	}
	if luhn {
		candidates /= 10
	}
	return max(1, max(3, min(100, candidates/1000))/replicas)
}
