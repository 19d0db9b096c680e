{{- define "ottla.name" -}}
{{- if contains "ottla" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-ottla" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "ottla.operator" -}}
{{ include "ottla.name" . }}-operator
{{- end }}

{{- define "ottla.selector" -}}
app.kubernetes.io/name: ottla
app.kubernetes.io/component: operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ottla.labels" -}}
{{ include "ottla.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "ottla.serviceAccount" -}}
{{ if .Values.serviceAccount.create }}{{ default (include "ottla.operator" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "ottla.image" -}}
{{- $image := index .root.Values.images .which -}}
{{- $registry := .root.Values.images.registry -}}
{{ if $registry }}{{ trimSuffix "/" $registry }}/{{ end }}{{ $image.repository }}:{{ default .root.Chart.AppVersion $image.tag }}
{{- end }}

{{- define "ottla.pullSecretNames" -}}
{{- $names := list }}{{ range .Values.images.pullSecrets }}{{ $names = append $names .name }}{{ end }}{{ join "," $names }}
{{- end }}

{{- define "ottla.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "ottla.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end }}
