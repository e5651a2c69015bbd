# Reads "access_path <tab> test <tab> metric <tab> value" lines; prints medians, ratios, and whether they reach what they are to reach.
BEGIN { FS = "\t" }

{
  what = $2 FS $3
  if (!(what in seen)) { seen[what] = 1; order[++count] = what }
  cell = $1 SUBSEP what
  values[cell, ++size[cell]] = $4
}

function median(cell,   n, i, j, t, sorted) {
  n = size[cell]
  for (i = 1; i <= n; i++) sorted[i] = values[cell, i] + 0
  for (i = 2; i <= n; i++)
    for (j = i; j > 1 && sorted[j - 1] > sorted[j]; j--) { t = sorted[j]; sorted[j] = sorted[j - 1]; sorted[j - 1] = t }
  return n % 2 ? sorted[(n + 1) / 2] : (sorted[n / 2] + sorted[n / 2 + 1]) / 2
}

# What the ratio of an access path to its floor is to be; 0: nothing was set.
function aim(access_path, test, metric) {
  if (access_path == "mount") return test ~ /^ior/ ? 0.9 : metric ~ /^(create|stat|removal)$/ ? 1 : 0
  if (access_path == "temporary") return metric == "create" && test ~ /np=1/ ? 2 : 0
  if (access_path != "run") return 0
  if (test ~ /^ior/) return metric == "read" ? 0.8 : test ~ /shared/ ? 1.2 : 0.9
  if (test ~ /np=1/) return metric == "removal" ? 0.5 : metric == "read" ? 0 : 0.6
  return 0
}

function line(access_path, test, metric, value, floor, base, target,   ratio, verdict) {
  ratio = base > 0 ? value / base : 0
  verdict = !target || !base ? "" : ratio >= target ? "reached" : "missed"
  if (json) {
    printf "{\"test\":\"%s\",\"metric\":\"%s\",\"access_path\":\"%s\",\"value\":%.1f,\"unit\":\"%s\"", test, metric, access_path, value,
      test ~ /^ior/ ? "MiB/s" : "1/s"
    if (base) printf ",\"floor\":\"%s\",\"ratio\":%.3f", floor, ratio
    if (target && base) printf ",\"aim\":%.2f,\"reached\":%s", target, verdict == "reached" ? "true" : "false"
    print "}"
  } else {
    printf "%-22s %-8s %-12s %12.0f %s", test, metric, access_path, value, test ~ /^ior/ ? "MiB/s" : "1/s  "
    if (base) printf "  x %.2f of %s", ratio, floor
    if (verdict != "") printf "  (aim %.1f: %s)", target, verdict
    print ""
  }
}

END {
  access_paths = split("tmpfs run temporary passthrough uncached mount", access_path, " ")
  for (i = 1; i <= count; i++) {
    split(order[i], part, FS)
    for (d = 1; d <= access_paths; d++) {
      cell = access_path[d] SUBSEP order[i]
      if (!size[cell]) continue
      if (part[2] == "wrong") {
        wrong = 0
        for (n = 1; n <= size[cell]; n++) wrong += values[cell, n]
        if (json) printf "{\"test\":\"%s\",\"access_path\":\"%s\",\"wrong\":%d}\n", part[1], access_path[d], wrong
        else printf "%-31s %-12s %s\n", part[1], access_path[d], wrong ? "WRONG DATA" : "every byte right"
        bad += wrong
        continue
      }
      # The mount caches names and attributes, as passthrough_hp does, but no data.
      floor = access_path[d] == "tmpfs" ? "" : access_path[d] != "mount" ? "tmpfs" : order[i] ~ /^ior/ ? "uncached" : "passthrough"
      base = floor != "" && size[floor SUBSEP order[i]] ? median(floor SUBSEP order[i]) : 0
      line(access_path[d], part[1], part[2], median(cell), floor, base, aim(access_path[d], part[1], part[2]))
      # Two processes are not to get less done than one.
      one = order[i]
      if (access_path[d] == "run" && sub(/np=2/, "np=1", one) && size["run" SUBSEP one])
        line(access_path[d], part[1], part[2], median(cell), "np=1", median("run" SUBSEP one), part[2] == "read" ? 0 : 1)
    }
  }
  exit bad > 0
}
