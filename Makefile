# Everything a developer runs. `make help` lists the targets.
PATH := $(PATH):$(CURDIR)/web/node_modules/.bin

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
