package main

// A limit bounds one figure. It stands at the figure of the change that lowered it last,
// or at the goal once that is reached, so that no change makes the figure worse.
type limit struct {
	of     measure
	where  string // the folder of a package, or everywhere
	atMost float64
	goal   float64 // also at most
}

const (
	everywhere = ""
	root       = "."
	allTests   = "tests" // the prose of all of them
)

var limits = []limit{
	{walls, everywhere, 0.8, 9.9},
	{p99, everywhere, 64, 75},
	{over75, everywhere, 0, 0},
	{over100, everywhere, 0, 0},
	{hidden, everywhere, 0, 0},
	{methods, root, 211, 176},
	{circle, root, 17, 19},
	{circle, "store/pgstore", 4, 4},
	{lines, root, 13965, 9999},
	{listings, root, 3, 1}, // the table of work, of which account each kind of record is, and its name
}

// What the measures count.
const (
	long       = 20   // a function with more lines than that below its first needs a blank line
	tableShare = 0.75 // of a function's lines in one literal of a list or map: a table, which does not count
	loose      = 0.9  // of a limit: a figure below asks for a lower limit

	fewCalques   = 2  // per thousand words
	longSentence = 25 // words

	vault = "Vault" // the type of the root whose methods count

	// A function or variable that names so many kinds of background work lists them. A
	// function for one part of the domain names two at most.
	listed = 3
)

// hubs are the files of the root that name every other and are named by each: the vault
// itself, its options, and the table of its background work.
var hubs = map[string]bool{"vault.go": true, "options.go": true, "work.go": true}

// kindsOfWork are the constants of the root whose records are background work.
var kindsOfWork = []string{"kindNetworkToken", "kindRelease", "kindBackfill", "kindSinkQueue", "kindQueue", "kindRemains", "kindSpread", "kindRound", "kindReseal", "kindClosing", "kindRetention"}
