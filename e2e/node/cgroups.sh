# The node's cgroups: a folder of one name in each hierarchy with version 1, one in all with version 2. Sourced by settings.sh.
cgroup=ottla-node
cgroup_root=/sys/fs/cgroup

# The root of version 2 alone has this file; where both versions are mounted, version 1 has the controllers.
cgroup_is_v2() { [ -e "$cgroup_root/cgroup.controllers" ]; }

cgroup_folders() {
    if cgroup_is_v2; then
        echo "$cgroup_root/$cgroup"
    else
        for each in "$cgroup_root"/*/; do
            if [ -e "$each/cgroup.procs" ]; then echo "$each$cgroup"; fi
        done
    fi
}

# Creates them, and gives the node eight times the default CPU share: its pods are many programs, but as one cgroup they
# would get the share of a single one.
cgroup_make() {
    cgroup_folders | xargs mkdir -p
    if cgroup_is_v2; then cgroup_fit_v2; else cgroup_fit_v1; fi
}

cgroup_fit_v1() {
    if [ -e "$cgroup_root/cpuset/cpuset.cpus" ]; then
        for file in cpuset.cpus cpuset.mems; do     # an empty cpuset, which a new one is, admits no process
            cat "$cgroup_root/cpuset/$file" > "$cgroup_root/cpuset/$cgroup/$file"
        done
    fi
    if [ -e "$cgroup_root/cpu/$cgroup/cpu.shares" ]; then echo 8192 > "$cgroup_root/cpu/$cgroup/cpu.shares"; fi
}

cgroup_fit_v2() {
    local each folder
    for each in cpuset cpu memory pids; do
        grep -qw $each "$cgroup_root/cgroup.controllers" ||
            die "kubelet needs the cgroup controller $each, but $cgroup_root/cgroup.controllers does not list it"
        for folder in "$cgroup_root" "$cgroup_root/$cgroup"; do     # what a folder hands on, its folders have
            { echo "+$each" > "$folder/cgroup.subtree_control"; } 2>/dev/null ||
                die "$folder cannot enable the controller $each for its children: inside a container, first move its processes to a child cgroup"
        done
    done
    if [ -e "$cgroup_root/$cgroup/cpu.weight" ]; then echo 800 > "$cgroup_root/$cgroup/cpu.weight"; fi
}
