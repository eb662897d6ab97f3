# Every target works on all modules of the repository: ./... stops at their borders.
MODULES := $(sort $(dir $(shell git ls-files '*go.mod')))
FUZZTIME ?= 30s
BENCH    ?=
FAULTS   ?= 100
FLAGS    ?=

.PHONY: help check api house test stress race fuzz bench bench-big bench-gate faults bundle deps site

help: ## this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

check: ## formatting, vet, staticcheck, tidy modules, the limits of the shape, other platforms
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt would change:"; echo "$$out"; exit 1; }
	@for m in $(MODULES); do echo "check $$m" && (cd $$m && go mod tidy -diff) || exit 1; done
	@for m in $(MODULES); do (cd $$m && go vet ./... && go tool -modfile=$(CURDIR)/tools/go.mod staticcheck ./...) || exit 1; done
	@go run -C tools ./house -q
	GOOS=windows GOARCH=386 go build ./...
	GOOS=darwin go build . ./store/... ./examples/embed

house: ## the shape of the code in figures, beside limits and goals (V=1 names what they count, PICTURE=1 draws DESIGN.md's picture)
	@go run -C tools ./house $(if $(V),-v) $(if $(PICTURE),-picture)

# What tests need from the system is installed through apt when this is root on
# Debian, and printed; what they need of npm goes into test. NO_INSTALL=1
# forbids both. A test that lacks something is skipped with its reason; with CI=true
# that is a failure.
deps:
	@sh .ci/deps

GOTEST := sh $(CURDIR)/.ci/gotest

# Tests that pass days of virtual time, in which one goroutine works at a time, or do on
# disk or one after another what others do at once.
export LONG := ^Test(StatesTold|WebhookFailsNowAndThen|WebhookWithoutSuccess|WebhookAfterAQuietTime|ManyWebhooksHang|EventRetries|CardChangesFoundByLookups|DamagedJobs|ReceiverDown|IdentificationUnanswered|IdentificationFaults|ReleaseRetries|NoSender|RefusedCards|Reconcile|FaultsWhileDeleting|NoEcho|TranscriptsOnDisk|GivingUp)$$
export SECRETS := Card|Code|Key|Left|Leak|Nothing|Secret|Transcripts$$

# Besides, tests in which the race detector sees nothing that others do not show it: they
# change bytes, methods or answers one after another, make requests one after another, fill a
# bound, kill processes that do one thing at a time, or pass hours of virtual time with a few jobs.
export ALONE := ^Test(Apart|AuditBound|AuditKilled|AuditMethods|AuditPages|AuditRetentionLate|AuditTenantFloods|BackupKilled|CardArtThatCannotBeHad|Chain|Damage|DamagedBackup|DamagedFiles|DeliveriesOfADeletion|DeliveryRetries|EscapesInForm|EventOfATokenThatChangesUnheard|FailedCompletions|Families|FamilyKilled|KeyFileModeWhateverUmask|KeyFileRefusesBitFlips|LedgerKilled|LedgerRefused|ManyBreaks|ManyFail|NothingIsLeft|NothingPrints|PastBesideALostOne|Polling|ProvisionRefused|RateLimitOfManyKeys|RestoreKilled|Restless|RetriesBesideALostDelivery|RetryAfter|SinkBehindACrowd|SumsKilled|SumsOfAccounts|SweepOfALiar|TablesOfTheirOwn|Throttled|Transcripts|TranscriptsIgnoreUnknown|TranscriptsOmitAbsent|UpdaterRefusesMerchants)$$

# Packages that read the sources and documents of the repository: no mode changes those.
export TEXTS := /internal/(doctest|floorplan)$$

# Packages of which no more than SECRETS, or nothing, is run again in another mode.
export APART := /cardvault$$|/cardvault/(httpapi$$|store|examples|internal/realtest)
export JSON := encoding/json|runtime/secret

# Much of this waits for servers, browsers and clocks, so three run at a time, those that
# take longest first. The whole is done once. With -short a few tests do the same with
# less, and what is left out elsewhere has nothing to do with what is different there: FIPS
# mode differs in calls of crypto, which nothing under store makes; encoding/json/v2 where
# JSON is read and written, runtime/secret where keys and codes are erased. So the packages
# are those whose files name these, and of the root and of httpapi those tests. The store of
# examples/sqlite takes part with -short like PostgreSQL's: that runs every rule of both
# suites once.
test: deps ## all tests, some also in FIPS 140-3 mode, against encoding/json/v2 and with runtime/secret
	@{ echo '$(GOTEST) ./...'; \
		echo 'cd store/pgstore && $(GOTEST) -short ./...'; \
		echo 'cd test && $(GOTEST) ./...'; \
		for m in $(filter-out ./ store/pgstore/ test/ examples/sqlite/,$(MODULES)); do echo "cd $$m && $(GOTEST) ./..."; done; \
		echo 'cd examples/sqlite && $(GOTEST) -short ./...'; \
		echo 'GODEBUG=fips140=only $(GOTEST) -short -skip $$LONG $$(sh .ci/importing crypto/ | grep -vE $$APART | grep -vE $$TEXTS)'; \
		echo 'GODEBUG=fips140=only $(GOTEST) -short -run $$SECRETS . ./httpapi'; \
		echo 'GOEXPERIMENT=jsonv2,runtimesecret $(GOTEST) -short $$(sh .ci/importing $$JSON | grep -E /cardvault/internal | grep -vE $$APART | grep -vE $$TEXTS) ./httpapi'; \
		echo 'GOEXPERIMENT=jsonv2,runtimesecret $(GOTEST) -short -run $$SECRETS .'; \
	} | xargs -P 3 -I {} sh -c '{}'

stress: deps ## the tests N (10) times, LOAD=4 beside four busy loops: names what fails by chance
	@N=$(or $(N),10) LOAD=$(or $(LOAD),0) WHAT='$(WHAT)' sh .ci/stress

race: deps ## tests under the race detector, but for those that spend their time in other programs
	@cd store/valkeycodes && $(GOTEST) -race -short ./...
	@$(GOTEST) -race -short -skip "$$LONG|$$ALONE" $$(go list ./... | grep -v -e /examples -e /iin -e /iso -e /storetest -e /simnet -e /networktest -e /printtest | grep -vE $$TEXTS)

api: ## what changed in the Go API since the commit SINCE, as a list for the changelog
	@SINCE='$(SINCE)' sh .ci/api

fuzz: ## every fuzz target for FUZZTIME (30s)
	@grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r f; do \
		grep -oE '^func Fuzz[A-Za-z0-9_]+' $$f | sed 's/^func //' | while read -r name; do \
			echo "$$name in $$(dirname $$f)"; GOEXPERIMENT=jsonv2 go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./$$(dirname $$f) || exit 1; done || exit 1; done

site: ## docs/ as static pages in site/, without a network
	@go run -C tools ./site -out ../site && echo site/index.html

bundle: ## httpapi/cardentry/dist and httpapi/openapi.json, of their sources
	go run -C test ./bundle
	go run -C test ./contract

bench: ## docs/benchmarks.md: ratios to bbolt, net/http and pgx, beside their goals (BENCH="import get …" prints a selection, FLAGS="-rounds 1")
	go run -C internal/bench . $(FLAGS) $(if $(BENCH),$(BENCH),-out ../../docs/benchmarks)

bench-big: ## the same with ten million tokens, for the figures that depend on their number: 20 GB of disk below TMPDIR
	go run -C internal/bench . -tokens 10000000 $(FLAGS) -out ../../docs/benchmarks disk open get list import http sweep

bench-gate: ## fails if calls cost more than internal/bench/testdata/gate.json says (UPDATE=1 writes that)
	go run -C internal/bench . -gate $(if $(UPDATE),-update)

faults: deps ## fail-overs of PostgreSQL under writes, FAULTS (100) times, ten times as many kills of a vault, also while keys are rotated, changed and retired, records sealed anew, audit records written, accounts closed, vaults repaired and moved, and backups restored with a ledger, a hundred times as many power cuts, fifty times as many damaged files, and disks that fail: what is lost, and for how long
	FAULTS=$(FAULTS)0 go test -v -count=1 -timeout 120m -run '^Test((Reseal|Keyring|Audit|Ledger|Close|Repair|Move|Family)Killed|DamagedFiles)$$' .
	CI=true FAULTS=$(FAULTS) go test -C test -v -count=1 -timeout 60m ./faults
	CI=true FAULTS=$(FAULTS) go test -C examples/cluster -v -count=1 -timeout 60m -run '^TestFailover$$' .
