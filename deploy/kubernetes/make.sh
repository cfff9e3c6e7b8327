#!/usr/bin/env bash
# Prints holdfast.yaml, made of the chart in deploy/helm. It needs helm.
set -euo pipefail
cd "$(dirname "$0")/.."
cat <<'HEAD'
# Holdfast on Kubernetes 1.29 or newer: three nodes of one endpoint, whose store is elsewhere. It is made of the chart in
# deploy/helm by make.sh, for those who do not use Helm. docs/deploy.md says what to change: the image, the command, and who
# may connect.
#
#   kubectl create namespace holdfast
#   kubectl -n holdfast create secret generic holdfast --from-literal=store=redis://:PASS@redis.redis:6379
#   kubectl -n holdfast apply -f holdfast.yaml
HEAD
helm template holdfast helm --namespace holdfast --kube-version v1.34.1 -f helm/ci/kubernetes-values.yaml |
	sed '/^# Source: /d; /helm.sh\/chart:/d; /managed-by: Helm/d'
