{{- define "ottla.name" -}}
{{- if contains "ottla" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-ottla" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "ottla.operator" -}}
{{ include "ottla.name" . }}-operator
{{- end }}

{{/* Names of cluster-scoped objects: the same release name in another namespace must not collide. */}}
{{- define "ottla.clusterScoped" -}}
{{ .Release.Namespace }}-{{ include "ottla.operator" . }}
{{- end }}

{{/*
Fails if the operator of another release watches a namespace that this one would watch: each would undo the other's
changes. Checks role bindings whose Deployment still exists: a deleted namespace leaves its ClusterRoleBinding behind.
`helm template` does not ask the API server, so the check finds nothing there.
*/}}
{{- define "ottla.onlyOne" -}}
{{- $bindings := list }}
{{- if .Values.operator.watchNamespaces }}
{{- range .Values.operator.watchNamespaces }}
{{- $bindings = concat $bindings ((lookup "rbac.authorization.k8s.io/v1" "RoleBinding" . "").items | default list) }}
{{- end }}
{{- else }}
{{- $bindings = (lookup "rbac.authorization.k8s.io/v1" "ClusterRoleBinding" "" "").items | default list }}
{{- $bindings = concat $bindings ((lookup "rbac.authorization.k8s.io/v1" "RoleBinding" "" "").items | default list) }}
{{- end }}
{{- range $bindings }}
{{- $labels := .metadata.labels | default dict }}
{{- if and (eq (get $labels "app.kubernetes.io/name") "ottla") (eq (get $labels "app.kubernetes.io/component") "operator") }}
{{- $place := (first (.subjects | default (list dict))).namespace | default "" }}
{{- $release := get $labels "app.kubernetes.io/instance" }}
{{- if and $place (not (and (eq $place $.Release.Namespace) (eq $release $.Release.Name))) }}
{{- range (lookup "apps/v1" "Deployment" $place "").items | default list }}
{{- $found := .metadata.labels | default dict }}
{{- if and (eq (get $found "app.kubernetes.io/name") "ottla") (eq (get $found "app.kubernetes.io/component") "operator") (eq (get $found "app.kubernetes.io/instance") $release) }}
{{- fail (printf "The operator %s in namespace %s already watches namespaces that this one would watch, and each would undo the other's changes. Uninstall it, or give each operator its own operator.watchNamespaces." .metadata.name $place) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The Cluster's spec: three brokers or more get three etcd members by default. The number can never change, so an existing
Cluster keeps it.
*/}}
{{- define "ottla.clusterSpec" -}}
{{- $spec := merge (deepCopy .Values.cluster.spec) (dict "imagePullPolicy" .Values.images.pullPolicy) }}
{{- $etcd := $spec.etcd | default dict }}
{{- if not $etcd.endpoints }}
{{- $managed := $etcd.managed | default dict }}
{{- if not $managed.replicas }}
{{- $members := ternary 3 1 (ge (int ($spec.brokers | default 3)) 3) }}
{{- if .Capabilities.APIVersions.Has "ottla.dev/v1alpha1/Cluster" }}
{{- with (lookup "ottla.dev/v1alpha1" "Cluster" .Release.Namespace .Values.cluster.name).spec }}
{{- $members = ((.etcd | default dict).managed | default dict).replicas | default 1 }}
{{- end }}
{{- end }}
{{- $_ := set $spec "etcd" (merge (dict "managed" (merge (dict "replicas" (int $members)) $managed)) $etcd) }}
{{- end }}
{{- end }}
{{- toYaml $spec }}
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
