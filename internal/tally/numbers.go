package tally

// Bounds of NumbersADay.
const (
	numbersShare = 1000 // of so many candidates one a day
	leastNumbers = 3    // of all replicas together
	mostNumbers  = 100
)

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
	return max(1, max(leastNumbers, min(mostNumbers, candidates/numbersShare))/replicas)
}
