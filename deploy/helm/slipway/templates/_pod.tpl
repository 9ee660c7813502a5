{{/* The pod of a server, of Deployment and StatefulSet alike. */}}
{{- define "slipway.pod" -}}
{{- $v := .Values -}}
{{- $full := include "slipway.fullname" . -}}
{{- $secrets := list -}}
{{- range $name, $s := dict "htpasswd" $v.htpasswd "tls" $v.tls "s3" $v.s3 "swift" $v.swift "postgres" $v.postgres "cluster" $v.cluster "token" $v.tokenKey -}}
{{- if $s.existingSecret -}}{{- $secrets = append $secrets (dict "name" $name "secret" $s.existingSecret) -}}{{- end -}}
{{- end -}}
{{- range $v.extraSecrets -}}
{{- $secrets = append $secrets (dict "name" .name "secret" .name) -}}
{{- end -}}
metadata:
  labels:
    {{- include "slipway.selector" . | nindent 4 }}
    {{- with $v.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include "slipway.config" . | sha256sum }}
    {{- with $v.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "slipway.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $v.terminationGracePeriodSeconds }}
  {{- with include "slipway.pullSecrets" . }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if $v.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with $v.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: slipway
      image: {{ include "slipway.image" . }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      args: [serve, --config, /etc/slipway/config.yml]
      env:
        - name: TMPDIR
          value: /tmp
        {{- if $v.cluster.existingSecret }}
        - name: SLIPWAY_CLUSTER_ID
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: SLIPWAY_CLUSTER_URL
          value: http://$(SLIPWAY_CLUSTER_ID).{{ $full }}-peers.{{ .Release.Namespace }}.svc:5002
        {{- end }}
        {{- with $v.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if not $v.hostNetwork }}
      ports:
        - {name: registry, containerPort: 5000}
        - {name: debug, containerPort: 5001}
        {{- if $v.cluster.existingSecret }}
        - {name: peers, containerPort: 5002}
        {{- end }}
      {{- end }}
      {{- range $probe := list "startupProbe" "livenessProbe" "readinessProbe" }}
      {{- with index $v $probe }}
      {{ $probe }}:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- end }}
      {{- with $v.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.securityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - {name: config, mountPath: /etc/slipway, readOnly: true}
        - {name: data, mountPath: /var/lib/slipway}
        - {name: tmp, mountPath: /tmp}
        {{- range $secrets }}
        - {name: secret-{{ .name }}, mountPath: /run/secrets/slipway/{{ .name }}, readOnly: true}
        {{- end }}
        {{- with $v.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ $full }}}
    - name: tmp
      emptyDir: {}
    {{- if not $v.persistence.enabled }}
    - name: data
      emptyDir: {}
    {{- else if not (include "slipway.shared" .) }}
    - name: data
      persistentVolumeClaim: {claimName: {{ default (printf "%s-data" $full) $v.persistence.existingClaim }}}
    {{- end }}
    {{- range $secrets }}
    - name: secret-{{ .name }}
      secret: {secretName: {{ .secret }}, defaultMode: 0440, optional: false}
    {{- end }}
    {{- with $v.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $v.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $v.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml $v.topologySpreadConstraints | nindent 4 }}
  {{- else if include "slipway.shared" . }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "slipway.selector" . | nindent 10 }}
  {{- end }}
  {{- with $v.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
{{- end -}}
