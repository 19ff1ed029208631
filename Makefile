# Everything a developer runs. `make help` lists the targets.
PATH := $(PATH):$(CURDIR)/web/node_modules/.bin

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
DATE    ?= $(shell git log -1 --format=%cI 2>/dev/null)
OBS     := github.com/imdhq/imd/pkg/obs
LDFLAGS := -s -w -X $(OBS).version=$(VERSION) -X $(OBS).commit=$(COMMIT) -X $(OBS).date=$(DATE)

# One set of flags for everything that links SQLite or etcd: another set would
# compile them once more.
PLAIN := CGO_ENABLED=0 go

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z\/_-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/imd, a static binary
	@[ -x bin/imd ] || echo "building bin/imd; the first time takes about two minutes"
	@$(PLAIN) build -trimpath -ldflags "$(LDFLAGS)" -o bin/imd .

.PHONY: run
run: build ## Build and start a development server that keeps its data in ./data
	@bin/imd dev --data-dir ./data

.PHONY: test
test: ## Run all tests whose servers are here, and say what was left out
	test/run

.PHONY: drill
drill: build ## Break a cluster on this machine for 10 minutes and judge the history
	bin/imd drill --minutes 10

.PHONY: drill-leaders
drill-leaders: ## Break leaders, those whom they tell, and Redis with its clock, in a build with fail points, for 2 minutes
	$(PLAIN) build -trimpath -tags drill -o bin/imd-drill .
	bin/imd-drill drill --layout split --minutes 2 --conns 40 --users 30 --rate 40 \
		--faults leader-kill,leader-pause,leader-cut,receiver-hang,receiver-lie,receiver-twice,redis-clock,redis-flush,kick-race

.PHONY: drill-regressions
drill-regressions: build ## Play the drills again that once found a defect
	@grep -v '^#' test/drill/regressions.txt | while read -r layout seed minutes what; do \
		echo "$$layout, seed $$seed: $$what"; \
		bin/imd drill replay $$seed --layout $$layout --minutes $$minutes || exit 1; \
	done

.PHONY: known-bad
known-bad: ## Have drills find each known defect, or those named CASE alone; writes the table in docs/reliability.md
	$(PLAIN) build -trimpath -tags drill -o bin/imd-drill .
	IMD_TEST_BIN=$(CURDIR)/bin/imd-drill IMD_TEST_TABLE=$(CURDIR)/docs/reliability.md \
		$(PLAIN) test -trimpath -tags drill -count=1 -timeout 45m -run 'KnownBad$(if $(CASE),$$/^$(CASE)(#|$$))' -v ./test/drill
	$(if $(CASE),,$(PLAIN) test -trimpath -tags drill -count=1 -run KnownBad -v ./test/segment)

.PHONY: lint
lint: ## Check formatting, and what go vet, staticcheck (if it is installed) and buf find
	@! gofmt -l $$(git ls-files '*.go' | grep -v /gen/) | grep .
	$(PLAIN) vet -trimpath ./...
	cd sdk/go && $(PLAIN) vet -trimpath ./...
	@! command -v staticcheck >/dev/null || CGO_ENABLED=0 GOFLAGS=-trimpath staticcheck -checks inherit,-SA4000,-ST1005 ./...
	@! command -v buf >/dev/null || buf lint

.PHONY: docs
docs: ## Renew the parts of docs/ that are generated from the program
	$(PLAIN) test -trimpath ./cmd -run Document -update
	go test ./docs -update

.PHONY: example
example: ## Write config.example.yaml anew from the configuration structs
	$(PLAIN) run -trimpath . config docs --example > config.example.yaml.new
	mv config.example.yaml.new config.example.yaml

.PHONY: web
web: web/node_modules ## Build the chat page into web/dist
	cd web && npm run dist

# The generators share the compile of the build.
gen openapi: export CGO_ENABLED = 0
gen openapi: export GOFLAGS += -trimpath

.PHONY: gen
gen: web/node_modules ## Generate code from proto/
	buf lint
	buf generate --path proto/imd/internal --path proto/imd/admin
	buf generate --template buf.gen.sdk.yaml --path proto/imd/client --path proto/imd/v1
	buf generate --template buf.gen.public.yaml --path proto/imd/v1
	$(MAKE) openapi

.PHONY: openapi
openapi: web/node_modules ## Write docs/openapi.json from proto/
	buf build --as-file-descriptor-set -o - | go run ./pkg/openapi/gen > docs/openapi.json.new
	mv docs/openapi.json.new docs/openapi.json

web/node_modules: web/package-lock.json
	cd web && npm ci
	touch $@
