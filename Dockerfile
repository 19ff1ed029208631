# The image holds one static binary and nothing else: no shell, no libc. It runs
# as a user without rights, and its root may be read-only; all it writes is the
# data folder:
#
#   docker build -t imd .
#   docker run --read-only -v imd:/data -p 8420:8420 imd
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY sdk/go/go.mod sdk/go/go.sum ./sdk/go/
RUN go mod download
COPY . .
ARG VERSION=devel COMMIT= DATE=
RUN make build VERSION="$VERSION" COMMIT="$COMMIT" DATE="$DATE" \
 && mkdir -m 0700 /data

FROM scratch
COPY --from=build /src/bin/imd /imd
COPY --from=build --chown=65532:65532 /data /data
USER 65532:65532
ENV IMD_DATA_DIR=/data \
    IMD_GATEWAY_LISTEN=0.0.0.0:8420 \
    IMD_OPS_LISTEN=127.0.0.1:8421
VOLUME /data
EXPOSE 8420
# The binary asks itself: there is no shell and no curl here.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s CMD ["/imd", "check", "ready"]
# Longer than node.grace, so that clients are let go in peace.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/imd"]
CMD ["serve", "--roles=all"]
