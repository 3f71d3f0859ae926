{{/* $sim: the settings of this pod, annotations before env. $engine: the container they are for. */}}
{{ $now := Now }}
{{ $engine := ( index .spec.containers 0 ).name }}
{{ range .spec.containers }}{{ if eq .name "engine" }}{{ $engine = .name }}{{ end }}{{ end }}
{{ $sim := dict }}
{{ range .spec.containers }}{{ if eq .name $engine }}{{ range .env }}{{ if hasPrefix "SIM_" .name }}{{ $_ := set $sim ( .name | trimPrefix "SIM_" | lower | replace "_" "-" ) ( or .value "" ) }}{{ end }}{{ end }}{{ end }}{{ end }}
{{ range $key, $value := .metadata.annotations }}{{ if hasPrefix "sim.ai.infra.example.com/" $key }}{{ $_ := set $sim ( trimPrefix "sim.ai.infra.example.com/" $key ) $value }}{{ end }}{{ end }}
{{ $sidecars := list }}{{ range .spec.initContainers }}{{ if eq ( or .restartPolicy "" ) "Always" }}{{ $sidecars = append $sidecars .name }}{{ end }}{{ end }}
