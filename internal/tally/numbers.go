package tally

// NumbersADay returns how many different numbers may be passed in that differ in so many
// digits alone: of those that there are, so few that guessing takes years or, where there
// are hardly any, months. Each replica takes its part.
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
