# syntax=docker/dockerfile:1
# Holdfast alone, for --upstream, --config with remote servers, and --demo. docs/deploy.md says how to
# make an image that has stdio servers too.
FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
# .git too: go build reads the version from it.
COPY . .
ARG TARGETOS TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -tags grpcnotrace -ldflags=-s -o /out/holdfast ./cmd/holdfast \
	&& mkdir /out/state

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/holdfast /usr/bin/holdfast
# A volume that is first mounted here belongs to the user: for --store file:/var/lib/holdfast.
COPY --from=build --chown=65532:65532 /out/state /var/lib/holdfast
USER 65532:65532
EXPOSE 8080 9090
ENTRYPOINT ["/usr/bin/holdfast"]
CMD ["serve", "--help"]
