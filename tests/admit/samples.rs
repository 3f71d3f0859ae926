//! Each sample is accepted.

use api::controllers::CONTROLLERS;
use tests::{api_server, workspace};

#[tokio::test]
async fn every_sample_is_accepted_without_a_warning() {
    let scene = api_server().await;
    let kinds = CONTROLLERS.iter().flat_map(|controller| controller.kinds);
    for sample in kinds.flat_map(|kind| kind.samples.iter().chain(kind.further_samples)) {
        let file = workspace().join("deploy/samples").join(sample);
        let args = ["--namespace=default", "apply", "--server-side", "--dry-run=server", "--filename"];
        let output = scene.kubectl_with_input(&[&args[..], &[file.to_str().unwrap()]].concat(), "");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !complaint.contains("Warning"), "{sample}: {complaint}");
    }
}
