//! ModelEvaluation: validation of every field, and what may be changed.

use api::aiinference::evaluation::ModelEvaluation;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::table::{api, attempt, case, check, create, message};

fn base() -> Value {
    json!({"baselineModel": "qwen/Qwen-7B", "candidateModel": "/checkpoints/qwen-qlora-v2", "testSet": "mmlu-zh"})
}

/// One test set with these fields.
fn set(fields: Value) -> Value {
    let mut set = json!({"name": "ours"});
    set.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({"testSet": null, "testSets": [set]})
}

#[tokio::test]
async fn a_model_is_a_name_a_place_a_path_or_a_server() {
    let model = |text: &str| json!({"candidateModel": text});
    let wrong = "must be aiinference/name";
    check::<ModelEvaluation>(
        base(),
        vec![
            case("candidateModel", wrong, model("qwen"), model("ms://qwen/Qwen@master")),
            case("candidateModel", wrong, model("-a/b"), model("hf://a/b")),
            case("candidateModel", wrong, model("aiinference/a/b"), model("aiinference/chat")),
            case("candidateModel", wrong, model("/a/"), model("/a/b")),
            case(
                "candidateModel",
                wrong,
                model("endpoint:ftp://host"),
                model("endpoint:https://host:8000/v1#a/b"),
            ),
            case(
                "candidateModel",
                wrong,
                model("endpoint:https://user:key@host/v1"),
                model("endpoint:http://host"),
            ),
            case("candidateModel", "must not contain", model("/a/../b"), model("s3://models/a")),
            case("candidateModel", "empty or '.' segment", model("s3://models//x"), model("pvc://claim/a")),
            case(
                "candidateModel",
                "a model is no worse than itself",
                model("qwen/Qwen-7B"),
                model("qwen/Qwen-8B"),
            ),
            case("candidateModel", "Required value", json!({"candidateModel": null}), json!({})),
            case("baselineModel", "Required value", json!({"baselineModel": null}), json!({})),
        ],
    )
    .await;
}

#[tokio::test]
async fn there_are_test_sets_with_names_and_files() {
    let name = "must be a name such as cmmlu";
    check::<ModelEvaluation>(
        base(),
        vec![
            case("", "exactly one of testSet and testSets", json!({"testSet": null}), json!({})),
            case("", "exactly one of", json!({"testSets": [{"name": "a"}]}), set(json!({}))),
            case("testSet", name, json!({"testSet": "--a"}), json!({"testSet": "mmlu-pro_v1.2"})),
            case(
                "testSets[0].dataset",
                name,
                set(json!({"dataset": "a b"})),
                set(json!({"dataset": "general_mcq"})),
            ),
            case(
                "testSets[0].path",
                "must not be set without claimName",
                set(json!({"path": "a"})),
                set(json!({"claimName": "c", "path": "a/b"})),
            ),
            case(
                "testSets[0].path",
                "must be a relative path",
                set(json!({"claimName": "c", "path": "/a"})),
                set(json!({"claimName": "c"})),
            ),
            case(
                "testSets[0].subsets",
                "must be names of subsets",
                set(json!({"subsets": ["-x"]})),
                set(json!({"subsets": ["high school"]})),
            ),
            case(
                "testSets[0].limit",
                "greater than or equal to 1",
                set(json!({"limit": 0})),
                set(json!({"limit": 100})),
            ),
            case(
                "testSets[0].harness",
                "Unsupported value",
                set(json!({"harness": "opencompass"})),
                set(json!({"harness": "lm-eval"})),
            ),
            case(
                "testSets[0].minimum",
                "must be a decimal number",
                set(json!({"minimum": "101"})),
                set(json!({"minimum": "70.5"})),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn text_completions_need_lm_eval() {
    let completions = |mut fields: Value| {
        fields["requests"] = json!("Completions");
        fields
    };
    let words = "evalscope sends chat completions alone";
    let mixed = json!({"testSet": null, "testSets": [{"name": "a", "harness": "lm-eval"}, {"name": "b"}]});
    let lm_eval = json!({"harness": "lm-eval"});
    check::<ModelEvaluation>(
        base(),
        vec![
            case("requests", words, completions(json!({})), json!({"requests": "Chat"})),
            case("requests", words, completions(mixed), completions(set(lm_eval))),
        ],
    )
    .await;
}

#[tokio::test]
async fn answers_are_uploaded_to_a_bucket() {
    let output = |fields: Value| {
        let mut output = json!({"uri": "s3://evaluations/chat"});
        output.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"output": output})
    };
    let mut cases = vec![
        case(
            "output.uri",
            "must be s3://bucket or s3://bucket/prefix",
            output(json!({"uri": "https://evaluations"})),
            output(json!({"claimName": "mine"})),
        ),
        case(
            "output.uri",
            "must be s3://bucket or s3://bucket/prefix",
            output(json!({"uri": "s3://"})),
            output(json!({"uri": "s3://evaluations"})),
        ),
        case(
            "output.secretName",
            "must be",
            output(json!({"secretName": "My Secret"})),
            output(json!({"secretName": "my-secret", "size": "2Gi"})),
        ),
    ];
    let of_a_store = [
        ("output.endpoint", json!({"endpoint": "https://minio:9000"})),
        ("output.region", json!({"region": "eu-central-1"})),
        ("output.secretName", json!({"secretName": "store"})),
        ("output.addressing", json!({"addressing": "Path"})),
        ("output.caSecretName", json!({"caSecretName": "store-ca"})),
    ];
    for (field, fields) in of_a_store {
        cases.push(case(field, "must not be set without uri", json!({"output": fields}), output(fields)));
    }
    check::<ModelEvaluation>(base(), cases).await;
}

#[tokio::test]
async fn numbers_that_decide_the_verdict_are_decimal_strings_in_their_range() {
    let budget = |text: &str| json!({"regressionBudgetPoints": text});
    let confidence = |text: &str| json!({"confidence": text});
    let temperature = |text: &str| json!({"temperature": text});
    let decimal = "must be a decimal number";
    check::<ModelEvaluation>(
        base(),
        vec![
            case("regressionBudgetPoints", decimal, budget("0"), budget("0.01")),
            case("regressionBudgetPoints", decimal, budget("100.01"), budget("100")),
            case("regressionBudgetPoints", decimal, budget("1.234"), budget("1.23")),
            case("regressionBudgetPoints", decimal, budget("1e1"), budget("10")),
            case("confidence", decimal, confidence("0.89"), confidence("0.9")),
            case("confidence", decimal, confidence("1.0"), confidence("0.99")),
            case("temperature", decimal, temperature("2.1"), temperature("2.0")),
            case(
                "concurrency",
                "less than or equal to 512",
                json!({"concurrency": 513}),
                json!({"concurrency": 512}),
            ),
            case("maxTokens", "greater than or equal to 1", json!({"maxTokens": 0}), json!({"maxTokens": 1})),
            case(
                "ttlSecondsAfterFinished",
                "greater than or equal to -1",
                json!({"ttlSecondsAfterFinished": -2}),
                json!({"ttlSecondsAfterFinished": -1}),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_server_has_gpus_or_an_image_for_the_cpu() {
    let server = |fields: Value| json!({"server": fields});
    check::<ModelEvaluation>(
        base(),
        vec![
            case(
                "server.gpus",
                "must be at least 1",
                server(json!({"gpus": 0})),
                server(json!({"gpus": 16})),
            ),
            case(
                "server.gpus",
                "must be 0 or absent",
                server(json!({"accelerator": "cpu", "gpus": 1, "image": "a"})),
                server(json!({"accelerator": "cpu", "image": "a"})),
            ),
            case(
                "server.image",
                "must be set with accelerator cpu",
                server(json!({"accelerator": "cpu"})),
                server(json!({"accelerator": "h100"})),
            ),
            case(
                "server.engine",
                "must not be triton",
                server(json!({"engine": "triton"})),
                server(json!({"engine": "tgi"})),
            ),
            case(
                "server.args",
                "must not set",
                server(json!({"args": ["--port=1"]})),
                server(json!({"args": ["--max-model-len=4096"]})),
            ),
            case(
                "output.size",
                "must not be set together with claimName",
                json!({"output": {"claimName": "c", "size": "1Gi"}}),
                json!({"output": {"size": "1Gi"}}),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn defaults_are_those_of_the_manual() {
    let scene = tests::api_server().await;
    let stored = attempt::<ModelEvaluation>(&scene, &base(), &json!({})).await.unwrap();
    let spec = &stored.data["spec"];
    for (field, default) in [
        ("regressionBudgetPoints", json!("1.0")),
        ("confidence", json!("0.95")),
        ("seed", json!(42)),
        ("temperature", json!("0")),
        ("concurrency", json!(8)),
        ("nullControl", json!(true)),
        ("allowOnline", json!(false)),
        ("ttlSecondsAfterFinished", json!(604_800)),
        ("suspend", json!(false)),
    ] {
        assert_eq!(spec[field], default, "{field}");
    }
}

#[tokio::test]
async fn another_question_is_another_evaluation() {
    let scene = tests::api_server().await;
    create::<ModelEvaluation>(&scene, "one", base()).await;
    let change = async |spec: Value| {
        let patch = Patch::Merge(json!({"spec": spec}));
        let objects = api::<ModelEvaluation>(scene.client(), scene.namespace());
        objects.patch("one", &PatchParams::default(), &patch).await.map(drop).map_err(message)
    };
    for (field, spec) in [
        ("baselineModel", json!({"baselineModel": "a/b"})),
        ("testSet", json!({"testSet": "ceval"})),
        ("confidence", json!({"confidence": "0.99"})),
        ("server", json!({"server": {"gpus": 2}})),
        ("image", json!({"image": "evalscope:2"})),
        ("activeDeadlineSeconds", json!({"activeDeadlineSeconds": 60})),
    ] {
        let refused = change(spec.clone()).await.expect_err(&format!("{spec} was accepted"));
        let is_named = refused.contains(&format!("spec.{field}: "));
        assert!(is_named && refused.contains("must not be changed after creation"), "{spec}: {refused}");
    }
    for spec in [json!({"suspend": true}), json!({"paused": true}), json!({"ttlSecondsAfterFinished": 0})] {
        change(spec).await.unwrap();
    }
    for output in [json!({"claimName": "mine"}), json!({"size": "2Gi"}), json!({"storageClassName": "fast"})]
    {
        let refused = change(json!({"output": output})).await.unwrap_err();
        assert!(refused.contains("spec.output: ") && refused.contains("must not be added"), "{refused}");
    }
    change(json!({"output": {"uri": "s3://evaluations/one"}})).await.unwrap();
}

/// A wrong address is found while the questions are asked, and they are not asked again for it.
#[tokio::test]
async fn the_store_of_the_answers_can_be_changed_and_their_claim_cannot() {
    let scene = tests::api_server().await;
    let mut spec = base();
    spec["output"] = json!({"claimName": "mine", "uri": "s3://evaluations/one"});
    create::<ModelEvaluation>(&scene, "stored", spec).await;
    let change = async |output: Value| {
        let patch = Patch::Merge(json!({"spec": {"output": output}}));
        let objects = api::<ModelEvaluation>(scene.client(), scene.namespace());
        objects.patch("stored", &PatchParams::default(), &patch).await.map(drop).map_err(message)
    };
    for output in [
        json!({"uri": "s3://evaluations/two", "endpoint": "https://minio:9000", "region": "eu", "secretName": "store"}),
        json!({"addressing": "Path", "caSecretName": "ca"}),
        json!({"addressing": null, "caSecretName": null, "endpoint": null, "region": null, "secretName": null}),
    ] {
        change(output).await.unwrap();
    }
    for (field, output) in [
        ("claimName", json!({"claimName": "other"})),
        ("claimName", json!({"claimName": null})),
        ("storageClassName", json!({"claimName": null, "storageClassName": "fast"})),
        ("size", json!({"claimName": null, "size": "2Gi"})),
    ] {
        let refused = change(output.clone()).await.expect_err(&format!("{output} was accepted"));
        let is_named = refused.contains(&format!("spec.output.{field}: "));
        assert!(is_named && refused.contains("must not be changed after creation"), "{output}: {refused}");
    }
    for (output, words) in [
        (Value::Null, "must not be removed"),
        (json!({"uri": null}), "must not be removed"),
        (json!({"uri": "s3://evaluations/../two"}), "must not contain '..'"),
        (json!({"uri": "s3://evaluations/v1..v2"}), "must not contain '..'"),
        (json!({"uri": "s3://evaluations//two"}), "empty or '.' segment"),
        (json!({"uri": "s3://evaluations/./two"}), "empty or '.' segment"),
        (json!({"uri": format!("s3://evaluations/{}", "a".repeat(971))}), "987"),
    ] {
        let refused = change(output).await.unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }
}
