{{- define "holdfast.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "holdfast.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "holdfast.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "holdfast.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.selector" -}}
app.kubernetes.io/name: {{ include "holdfast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "holdfast.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "holdfast.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* What the store is: memory, file or shared. Of a Secret the chart does not see the URL: it is taken as shared. */}}
{{- define "holdfast.store" -}}
{{- if .Values.store.existingSecret.name -}}shared
{{- else if hasPrefix "file:" .Values.store.url -}}file
{{- else if or (not .Values.store.url) (hasPrefix "memory:" .Values.store.url) -}}memory
{{- else -}}shared
{{- end -}}
{{- end -}}

{{/* A duration as 90s, 5m or 2h, in seconds. */}}
{{- define "holdfast.seconds" -}}
{{- $n := regexFind "^[0-9]+" . | int -}}
{{- if hasSuffix "h" . -}}{{ mul $n 3600 }}
{{- else if hasSuffix "m" . -}}{{ mul $n 60 }}
{{- else -}}{{ $n }}
{{- end -}}
{{- end -}}

{{/* The reference to a key of a Secret, for an environment variable. */}}
{{- define "holdfast.secretEnv" -}}
- name: {{ .variable }}
  valueFrom:
    secretKeyRef: {name: {{ .name | quote }}, key: {{ .key | quote }}}
{{- end -}}

{{/* Values that cannot go together. */}}
{{- define "holdfast.check" -}}
{{- $s := .Values.serve -}}
{{- $what := list -}}
{{- if $s.upstream }}{{ $what = append $what "serve.upstream" }}{{ end -}}
{{- if $s.command }}{{ $what = append $what "serve.command" }}{{ end -}}
{{- if $s.servers }}{{ $what = append $what "serve.servers" }}{{ end -}}
{{- if $s.existingServers.secret }}{{ $what = append $what "serve.existingServers.secret" }}{{ end -}}
{{- if $s.demo }}{{ $what = append $what "serve.demo" }}{{ end -}}
{{- if not $what }}{{ fail "nothing is served: set serve.upstream, serve.command, serve.servers, serve.existingServers.secret or serve.demo" }}{{ end -}}
{{- if gt (len $what) 1 }}{{ fail (printf "%s are set: one of them says what is served" (join " and " $what)) }}{{ end -}}
{{- if and $s.share (not $s.command) }}{{ fail "serve.share needs serve.command" }}{{ end -}}
{{- if and .Values.store.url .Values.store.existingSecret.name }}{{ fail "store.url and store.existingSecret.name are set: only one of them can be" }}{{ end -}}
{{- $store := include "holdfast.store" . -}}
{{- if ne $store "shared" -}}
{{- if .Values.doors.enabled }}{{ fail "doors.enabled needs a store that all pods reach: set store.url or store.existingSecret.name" }}{{ end -}}
{{- if or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled }}{{ fail (printf "several replicas need a store that all reach: set store.url or store.existingSecret.name to that of Redis or NATS (the store is %s:)" $store) }}{{ end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}{{ fail "ingress.enabled needs ingress.hosts" }}{{ end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRefs) }}{{ fail "gateway.enabled needs gateway.parentRefs" }}{{ end -}}
{{- end -}}

{{/* The arguments of a node: (dict "root" $ "role" ROLE "drain" DRAIN) */}}
{{- define "holdfast.args" -}}
{{- $v := .root.Values -}}
- serve
{{- if ne .role "both" }}
- --role={{ .role }}
{{- end }}
{{- if ne .role "worker" }}
- --listen=:8080
{{- end }}
- --admin=:9090
- --drain={{ .drain }}
- --log-format={{ $v.log.format }}
- --log-level={{ $v.log.level }}
{{- if eq (include "holdfast.store" .root) "memory" }}
- --state-dir=/var/lib/holdfast
{{- end }}
{{- if $v.sessionKeys.existingSecret.name }}
- --session-keys=/etc/holdfast/session-keys/{{ $v.sessionKeys.existingSecret.key }}
{{- end }}
{{- with $v.auth.issuer }}
- {{ printf "--auth-issuer=%s" . | quote }}
{{- end }}
{{- with $v.auth.resource }}
- {{ printf "--auth-resource=%s" . | quote }}
{{- end }}
{{- range $v.auth.audiences }}
- {{ printf "--auth-audience=%s" . | quote }}
{{- end }}
{{- range $v.auth.scopes }}
- {{ printf "--auth-scopes=%s" . | quote }}
{{- end }}
{{- with $v.auth.existingKeys }}{{ if .secret }}
- --auth-keys=/etc/holdfast/auth-keys/{{ .key }}
{{- end }}{{ end }}
{{- $hosts := $v.allowHosts }}
{{- if $v.ingress.enabled }}{{ $hosts = concat $hosts $v.ingress.hosts }}{{ end }}
{{- if $v.gateway.enabled }}{{ $hosts = concat $hosts $v.gateway.hostnames }}{{ end }}
{{- if $hosts }}{{ $name := include "holdfast.fullname" .root }}{{ $ns := .root.Release.Namespace }}
{{- $hosts = concat $hosts (list $name (printf "%s.%s" $name $ns) (printf "%s.%s.svc" $name $ns) (printf "%s.%s.svc.cluster.local" $name $ns)) }}
{{- end }}
{{- range uniq $hosts }}
- {{ printf "--allow-host=%s" . | quote }}
{{- end }}
{{- range $v.allowOrigins }}
- {{ printf "--allow-origin=%s" . | quote }}
{{- end }}
{{- range $v.trustProxies }}
- {{ printf "--trust-proxy=%s" . | quote }}
{{- end }}
{{- range $v.webhooks.allow }}
- {{ printf "--webhook-allow=%s" . | quote }}
{{- end }}
{{- range $v.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- if $v.serve.demo }}
- --demo
{{- else if $v.serve.upstream }}
- {{ printf "--upstream=%s" $v.serve.upstream | quote }}
{{- else if $v.serve.command }}
{{- if ne .role "door" }}
{{- if $v.serve.share }}
- --share
{{- end }}
- --
{{- range $v.serve.command }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- else if $v.serve.servers }}
- --config=/etc/holdfast/servers/servers.json
{{- else }}
- --config=/etc/holdfast/servers/{{ $v.serve.existingServers.key }}
{{- end }}
{{- end -}}

{{- define "holdfast.env" }}
{{- if .Values.tmp }}
- {name: HOME, value: /tmp}
{{- end }}
{{- if .Values.store.existingSecret.name }}
{{- include "holdfast.secretEnv" (dict "variable" "HOLDFAST_STORE" "name" .Values.store.existingSecret.name "key" .Values.store.existingSecret.key) | nindent 0 }}
{{- else if .Values.store.url }}
{{- include "holdfast.secretEnv" (dict "variable" "HOLDFAST_STORE" "name" (include "holdfast.fullname" .) "key" "store") | nindent 0 }}
{{- end }}
{{- with .Values.adminToken.existingSecret }}{{ if .name }}
{{- include "holdfast.secretEnv" (dict "variable" "HOLDFAST_ADMIN_TOKEN" "name" .name "key" .key) | nindent 0 }}
{{- end }}{{ end }}
{{- with .Values.webhooks.existingSecret }}{{ if .name }}
{{- include "holdfast.secretEnv" (dict "variable" "HOLDFAST_WEBHOOK_SECRET" "name" .name "key" .key) | nindent 0 }}
{{- end }}{{ end }}
{{- with .Values.extraEnv }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{- define "holdfast.mounts" }}
{{- if .Values.tmp }}
- {name: tmp, mountPath: /tmp}
{{- end }}
{{- if ne (include "holdfast.store" .) "shared" }}
- {name: state, mountPath: /var/lib/holdfast}
{{- end }}
{{- if or .Values.serve.servers .Values.serve.existingServers.secret }}
- {name: servers, mountPath: /etc/holdfast/servers, readOnly: true}
{{- end }}
{{- if .Values.sessionKeys.existingSecret.name }}
- {name: session-keys, mountPath: /etc/holdfast/session-keys, readOnly: true}
{{- end }}
{{- if .Values.auth.existingKeys.secret }}
- {name: auth-keys, mountPath: /etc/holdfast/auth-keys, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{- define "holdfast.volumes" }}
{{- if .Values.tmp }}
- name: tmp
  emptyDir: {}
{{- end }}
{{- if eq (include "holdfast.store" .) "file" }}
- name: state
  persistentVolumeClaim:
    claimName: {{ default (include "holdfast.fullname" .) .Values.store.persistence.existingClaim }}
{{- else if eq (include "holdfast.store" .) "memory" }}
- name: state # outlives the container, not the pod
  emptyDir: {}
{{- end }}
{{- if .Values.serve.servers }}
- name: servers
  configMap: {name: {{ include "holdfast.fullname" . }}}
{{- else if .Values.serve.existingServers.secret }}
- name: servers
  secret: {secretName: {{ .Values.serve.existingServers.secret }}}
{{- end }}
{{- with .Values.sessionKeys.existingSecret.name }}
- name: session-keys
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.auth.existingKeys.secret }}
- name: auth-keys
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.extraVolumes }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}
