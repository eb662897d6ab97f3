# Every target works on all modules of the repository: ./... stops at their borders.
MODULES := $(sort $(dir $(shell git ls-files '*go.mod')))
CODE    := $(filter-out tools/,$(MODULES))
FUZZTIME ?= 30s
BENCH    ?=

.PHONY: help check test race fuzz bench bundle deps

help: ## this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

check: ## formatting, vet, staticcheck, tidy modules, other platforms
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt would change:"; echo "$$out"; exit 1; }
	@for m in $(MODULES); do echo "check $$m" && (cd $$m && go mod tidy -diff) || exit 1; done
	@for m in $(CODE); do (cd $$m && go vet ./...) || exit 1; done
	go tool -modfile=tools/go.mod staticcheck ./...
	GOOS=windows go build ./...
	GOOS=darwin go build ./...
	GOARCH=386 go vet ./...

# With -short a few tests do the same with less: the whole is done once. Modules are
# tested beside each other, since those with a browser wait most of the time.
# What tests need from the system is installed through apt when this is root on
# Debian, and printed; what they need of npm goes into test/node_modules. NO_INSTALL=1
# forbids both. A test that lacks something is skipped with its reason; with CI=true
# that is a failure.
deps:
	@sh .ci/deps

test: deps ## all tests, also in FIPS 140-3 mode, against encoding/json/v2 and with runtime/secret
	@printf '%s\n' $(CODE) | xargs -P 2 -I {} sh -c 'cd {} && sh $(CURDIR)/.ci/gotest ./...'
	@GODEBUG=fips140=only sh .ci/gotest -short $$(go list ./... | grep -v -e /store -e /examples)
	@GOEXPERIMENT=jsonv2 sh .ci/gotest -short ./httpapi/... ./internal/jsontext/...
	@GOEXPERIMENT=runtimesecret sh .ci/gotest -short ./internal/...
	@GOEXPERIMENT=runtimesecret sh .ci/gotest -short -run 'Card|Code|Key|Left|Leak|Nothing|Secret' .

# Days of virtual time, in which one goroutine works at a time.
LONG := ^Test(StatesTold|WebhookFailsNowAndThen|WebhookWithoutSuccess|WebhookAfterAQuietTime|ManyWebhooksHang|EventRetries|KeyFileRefusesBitFlips|CardChangesFoundByLookups|DamagedJobs|ReceiverDown|IdentificationUnanswered|IdentificationFaults|ReleaseRetries|NoSender|RefusedCards|Reconcile|FaultsWhileDeleting)$$

race: deps ## tests under the race detector, but for those that spend their time in other programs
	@sh .ci/gotest -race -short -skip '$(LONG)' $$(go list ./... | grep -v /examples)

fuzz: ## every fuzz target for FUZZTIME (30s)
	@grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r f; do \
		grep -oE '^func Fuzz[A-Za-z0-9_]+' $$f | sed 's/^func //' | while read -r name; do \
			echo "$$name in $$(dirname $$f)"; GOEXPERIMENT=jsonv2 go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./$$(dirname $$f) || exit 1; done || exit 1; done

bundle: ## httpapi/cardentry/dist, of its sources
	go run -C test ./bundle

bench: ## ratios against raw bbolt and bare net/http (BENCH="import get …" selects)
	go run ./internal/bench $(BENCH)
