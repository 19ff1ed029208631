module github.com/imdhq/imd/sdk/go

go 1.26.0

require google.golang.org/protobuf v1.36.12

require github.com/coder/websocket v1.8.15
