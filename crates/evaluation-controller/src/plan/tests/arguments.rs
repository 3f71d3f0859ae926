//! The command lines of the runner. `eval-runner` has the same file, and a test that parses it.

use std::{fs, path::Path};

use super::*;

/// Those of the container and of its init container, in the last Job that is planned.
fn of_job(plan: &Plan) -> Vec<Vec<String>> {
    let Some(Child::Job(_, job)) = plan.children.last() else { panic!("{:?}", names(plan)) };
    let pod = job.spec.as_ref().unwrap().template.spec.clone().unwrap();
    let containers = pod.init_containers.into_iter().flatten().chain(pod.containers);
    containers.map(|container| container.args.unwrap()).collect()
}

fn with_server(fields: &Value) -> Observed {
    let mut seen = observed(evaluation(fields));
    seen.baseline = own("ab-baseline", &ready());
    seen.claims.insert("questions".to_owned(), Some(std::sync::Arc::default()));
    seen
}

/// Every command and every option, as the runner has to understand them.
#[test]
fn the_arguments_are_those_that_the_runner_is_tested_with() {
    let settings = Settings {
        lm_eval_image: Some("lm-eval:1".to_owned()),
        allow_online: true,
        allow_code_execution: true,
        ..settings()
    };
    let of = |seen: &Observed| of_job(&plan(seen, &settings, at(0)));
    let mut seen = with_server(&json!({}));
    let mut found = of(&seen);
    add_job(&mut seen, "ab-baseline-0", Some((0, ASKED)));
    seen = with_status(seen.clone(), &plan(&seen, &settings, at(0)));
    found.extend(of(&seen).pop());
    add_job(&mut seen, "ab-control-0", Some((0, ASKED)));
    add_job(&mut seen, "ab-candidate-0", Some((0, ASKED)));
    seen = with_status(seen.clone(), &plan(&seen, &settings, at(0)));
    found.extend(of(&seen));
    let all = json!({"maxTokens": 64, "temperature": "0.7", "concurrency": 3, "seed": 9, "allowCodeExecution": true,
        "testSets": [{"name": "Ours", "dataset": "general_mcq", "limit": 5, "subsets": ["a $(HOME)", "c"],
            "metric": "acc", "claimName": "questions", "path": "x"}]});
    found.extend(of(&with_server(&all)).pop());
    let online = json!({"requests": "Completions", "allowOnline": true,
        "testSets": [{"name": "gsm8k", "harness": "lm-eval"}]});
    found.extend(of(&with_server(&online)).pop());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../eval-runner/tests/fixtures/arguments.json");
    let tested: Vec<Vec<String>> = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(found, tested, "{}", serde_json::to_string_pretty(&found).unwrap());
}
