//! What this crate must not pull: it is linked by everything, also by programs that never speak to an API server.

use std::process::Command;

#[test]
fn the_crate_pulls_no_async_runtime_no_http_stack_and_no_kubernetes_client() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--package", "api", "--edges", "normal", "--prefix", "none", "--offline", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8_lossy(&tree.stdout);
    let names: Vec<_> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    // The tree is really ours, or the claim below would hold for anything.
    assert!(names.contains(&"api") && names.contains(&"kube-core"), "{tree}");
    for forbidden in ["tokio", "hyper", "kube-client", "kube-runtime", "rustls", "reqwest"] {
        assert!(!names.contains(&forbidden), "api pulls {forbidden}");
    }
}
