{{- define "slipway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "slipway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "slipway.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "slipway.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects pods, which must never change; and what else is good to know. */}}
{{- define "slipway.selector" -}}
app.kubernetes.io/name: {{ include "slipway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "slipway.agentSelector" -}}
app.kubernetes.io/name: {{ include "slipway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: agent
{{- end -}}

{{- define "slipway.meta" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "slipway.image" -}}
{{- $name := required "image.repository is not set: push the image of the release to a registry of yours and name it, as in --set image.repository=registry.example.com/slipway" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $name }}@{{ .Values.image.digest }}
{{- else -}}
{{ $name }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "slipway.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "slipway.serviceAccount" -}}
{{- default (ternary (include "slipway.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{/* "true" if contents are in an object store and the catalogue in PostgreSQL. */}}
{{- define "slipway.shared" -}}
{{- $storage := default dict .Values.config.storage -}}
{{- $catalog := default dict $storage.catalog -}}
{{- $objects := or (hasKey $storage "s3") (hasKey $storage "swift") -}}
{{- $postgres := or $catalog.postgres .Values.postgres.existingSecret -}}
{{- if and $objects $postgres -}}true{{- end -}}
{{- end -}}

{{/* The directory of a secret's files, and how the configuration refers to one. */}}
{{- define "slipway.secretFile" -}}/run/secrets/slipway/{{ .name }}/{{ .key }}{{- end -}}
{{- define "slipway.secretValue" -}}${file:{{ include "slipway.secretFile" . }}}{{- end -}}

{{/* What the chart says of the configuration, with config laid over it, as YAML. */}}
{{- define "slipway.config" -}}
{{- $v := .Values -}}
{{- $storage := default dict $v.config.storage -}}
{{- $data := "/var/lib/slipway" -}}
{{- $own := dict "version" 0.1 "http" (dict "addr" ":5000" "debug" (dict "addr" ":5001")) -}}
{{- $kept := dict -}}
{{- if or (hasKey $storage "s3") (hasKey $storage "swift") -}}
{{- $_ := set $kept "directory" $data -}}
{{- else if not (hasKey $storage "inmemory") -}}
{{- $_ := set $kept "filesystem" (dict "rootdirectory" $data) -}}
{{- end -}}
{{- if $v.s3.existingSecret -}}
{{- $_ := set $kept "s3" (dict "accesskey" (include "slipway.secretValue" (dict "name" "s3" "key" $v.s3.accessKey)) "secretkey" (include "slipway.secretValue" (dict "name" "s3" "key" $v.s3.secretKey))) -}}
{{- end -}}
{{- if $v.swift.existingSecret -}}
{{- $_ := set $kept "swift" (dict "username" (include "slipway.secretValue" (dict "name" "swift" "key" $v.swift.usernameKey)) "password" (include "slipway.secretValue" (dict "name" "swift" "key" $v.swift.passwordKey))) -}}
{{- end -}}
{{- if $v.postgres.existingSecret -}}
{{- $_ := set $kept "catalog" (dict "postgres" (include "slipway.secretValue" (dict "name" "postgres" "key" $v.postgres.key))) -}}
{{- end -}}
{{- $_ := set $own "storage" $kept -}}
{{- if $v.tls.existingSecret -}}
{{- $_ := set $own.http "tls" (dict "certificate" (include "slipway.secretFile" (dict "name" "tls" "key" "tls.crt")) "key" (include "slipway.secretFile" (dict "name" "tls" "key" "tls.key"))) -}}
{{- end -}}
{{- $auth := dict -}}
{{- if $v.htpasswd.existingSecret -}}
{{- $_ := set $auth "htpasswd" (dict "path" (include "slipway.secretFile" (dict "name" "htpasswd" "key" $v.htpasswd.key))) -}}
{{- end -}}
{{- if $v.tokenKey.existingSecret -}}
{{- $_ := set $auth "token" (dict "builtin" true "key" (include "slipway.secretFile" (dict "name" "token" "key" $v.tokenKey.key))) -}}
{{- end -}}
{{- if $auth -}}{{- $_ := set $own "auth" $auth -}}{{- end -}}
{{- if include "slipway.shared" . -}}
{{- $_ := set $own.http "drain_delay" "5s" -}}
{{- end -}}
{{- if $v.cluster.existingSecret -}}
{{- $_ := set $own "cluster" (dict "addr" ":5002" "secret" (include "slipway.secretValue" (dict "name" "cluster" "key" $v.cluster.key))) -}}
{{- end -}}
{{- toYaml (mergeOverwrite $own (deepCopy $v.config)) -}}
{{- end -}}

{{/* Fails if a part of the values is missing that the templates need. No user removes one, but values
     that are reused from an older chart lack what this one has added. */}}
{{- define "slipway.complete" -}}
{{- range $path := list "image" "server" "config" "htpasswd" "tls" "s3" "swift" "postgres" "cluster" "tokenKey" "persistence" "service" "ingress" "metrics" "metrics.serviceMonitor" "metrics.prometheusRule" "metrics.dashboards" "podDisruptionBudget" "networkPolicy" "serviceAccount" "test" "agent" "agent.config" "agent.podMonitor" -}}
{{- $at := $.Values -}}
{{- range splitList "." $path -}}{{- $at = index (default dict $at) . -}}{{- end -}}
{{- if not (kindIs "map" $at) -}}
{{- fail (printf "the values have no %s, as if they came from an older chart: use helm upgrade with --reset-then-reuse-values, not --reuse-values" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Values that cannot work together; each message says the way out. */}}
{{- define "slipway.guards" -}}
{{- $v := .Values -}}
{{- $config := default dict $v.config -}}
{{- $storage := default dict $config.storage -}}
{{- $auth := default dict $config.auth -}}
{{- $http := default dict $config.http -}}
{{- $token := default dict $auth.token -}}
{{- $shared := include "slipway.shared" . -}}
{{- if and (gt (int $v.replicas) 1) (not $shared) -}}
{{- fail (printf "replicas is %d, but a registry in one volume has one server: set config.storage.s3 or config.storage.swift and postgres.existingSecret (docs/replicas.md), or replicas: 1" (int $v.replicas)) -}}
{{- end -}}
{{- if and (gt (int $v.replicas) 1) $token.builtin (not $token.key) (not $v.tokenKey.existingSecret) -}}
{{- fail "config.auth.token.builtin with more than one replica needs one key for all: set tokenKey.existingSecret" -}}
{{- end -}}
{{- if and $v.s3.existingSecret (not (hasKey $storage "s3")) -}}
{{- fail "s3.existingSecret is set, but config.storage.s3 is not: name the bucket there" -}}
{{- end -}}
{{- if and $v.swift.existingSecret (not (hasKey $storage "swift")) -}}
{{- fail "swift.existingSecret is set, but config.storage.swift is not: name authurl and container there" -}}
{{- end -}}
{{- if and $v.cluster.existingSecret (not $shared) -}}
{{- fail "cluster.existingSecret is for several replicas: set config.storage.s3 or swift and postgres.existingSecret, or leave it empty" -}}
{{- end -}}
{{- if not (or $auth $v.htpasswd.existingSecret $v.tokenKey.existingSecret $http.insecure_open_to_network) -}}
{{- fail "nobody is said to have access: set htpasswd.existingSecret or config.auth, or config.http.insecure_open_to_network: true if everybody who reaches the registry may read, push and delete" -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
{{- fail "ingress.enabled needs a name of the registry in ingress.hosts" -}}
{{- end -}}
{{- if and $shared $v.persistence.existingClaim -}}
{{- fail "persistence.existingClaim is for one server in a volume; replicas get a claim each" -}}
{{- end -}}
{{- end -}}
