//! No request without exactly one token gets past the layer, and layers that let one past are found out.

use super::server::{Server, routes, stored, token, trusting};
use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use lease_core::FencingToken;
use lease_core::memory::MemoryDestination;
use lease_http::{FENCING_TOKEN, RequireTokenLayer};

/// Headers of a request that must not pass: what they are, the status, the problem.
type Bad = (Vec<Vec<u8>>, u16, &'static str);

fn bad_requests() -> Vec<Bad> {
    let good = token(7).to_string().into_bytes();
    let malformed = [
        "",
        "7",
        "7.0000000000000007",
        "07.0000000000000007.a",
        "+7.0000000000000007.a",
        "0.0000000000000007.a",
        "7.000000000000000G.a",
        "7.0000000000000007.a, 8.0000000000000008.a",
        "7.0000000000000007.a;q=1",
        "\"7.0000000000000007.a\"",
        "9223372036854775808.0000000000000007.a",
        "7.0000000000000007.\u{e4}",
        "Bearer 7.0000000000000007.a",
    ];
    let long = format!("7.0000000000000007.{}", "a".repeat(10_000));
    let mut bad: Vec<Bad> = vec![(vec![], 428, "token-missing")];
    bad.extend(malformed.map(|text| (vec![text.as_bytes().to_vec()], 400, "token-malformed")));
    bad.push((vec![long.into_bytes()], 400, "token-malformed"));
    bad.push((vec![b"7.0000000000000007.\xff".to_vec()], 400, "token-malformed"));
    bad.push((vec![good.clone(), good.clone()], 400, "token-repeated"));
    bad.push((vec![good.clone(), token(8).to_string().into_bytes()], 400, "token-repeated"));
    bad.push((vec![good, Vec::new()], 400, "token-repeated"));
    bad
}

/// What is wrong with a layer in front of the guarded handler.
async fn faults(destination: &MemoryDestination, app: Router) -> Vec<String> {
    let server = Server::start(app).await;
    let mut faults = Vec::new();
    for (number, (values, status, problem)) in bad_requests().into_iter().enumerate() {
        let headers: Vec<_> = values.iter().map(|value| ("Fencing-Token", value.as_slice())).collect();
        let body = format!("bad request {number}");
        let reply = server.put(&headers, &body).await;
        let shown: Vec<_> = values.iter().map(|value| String::from_utf8_lossy(value)).collect();
        if (reply.status, reply.problem().as_str()) != (status, problem) {
            faults.push(format!("{shown:?} was answered {} {:?}", reply.status, reply.problem()));
        } else if reply.json()["effect"] != "none" || !reply.head.contains("cache-control: no-store") {
            faults.push(format!("{shown:?} was answered {reply:?}"));
        }
        if stored(destination).await.value == Some(body) {
            faults.push(format!("{shown:?} was written"));
        }
    }
    let reply = server.put_with(&token(9), "lands").await;
    if reply.status != 200 || stored(destination).await.value.as_deref() != Some("lands") {
        faults.push(format!("a good token was answered {reply:?}"));
    }
    faults
}

#[tokio::test]
async fn exactly_one_token_is_required() {
    let destination = trusting().await;
    let app = routes(&destination).layer(RequireTokenLayer::new());
    assert_eq!(faults(&destination, app).await, Vec::<String>::new());
}

#[tokio::test]
async fn nested_layers_are_one() {
    let destination = trusting().await;
    let app = routes(&destination).layer(RequireTokenLayer::new()).layer(RequireTokenLayer::new());
    assert_eq!(faults(&destination, app).await, Vec::<String>::new());
}

/// Lets a request without a token through, as if it had the first one ever.
async fn missing_passes(mut request: Request, next: Next) -> Response {
    request.headers_mut().entry(FENCING_TOKEN).or_insert(token(1).to_string().parse().unwrap());
    next.run(request).await
}

/// Takes what is no token for the first one ever.
async fn malformed_passes(mut request: Request, next: Next) -> Response {
    let mut values = request.headers().get_all(FENCING_TOKEN).iter();
    let is_token = |text: &str| text.parse::<FencingToken>().is_ok();
    if let (Some(value), None) = (values.next(), values.next())
        && !value.to_str().is_ok_and(is_token)
    {
        request.headers_mut().insert(FENCING_TOKEN, token(1).to_string().parse().unwrap());
    }
    next.run(request).await
}

/// Takes the first of several.
async fn first_of_two(mut request: Request, next: Next) -> Response {
    if let Some(first) = request.headers().get(FENCING_TOKEN).cloned() {
        request.headers_mut().insert(FENCING_TOKEN, first);
    }
    next.run(request).await
}

#[tokio::test]
async fn a_layer_that_lets_one_past_is_found_out() {
    let honest = |destination: &MemoryDestination| routes(destination).layer(RequireTokenLayer::new());
    let destinations = [trusting().await, trusting().await, trusting().await];
    let [missing, malformed, repeated] = &destinations;
    for (shown, destination, app) in [
        ("[]", missing, honest(missing).layer(from_fn(missing_passes))),
        (r#"["7"]"#, malformed, honest(malformed).layer(from_fn(malformed_passes))),
        (r#"["7.0000000000000007.a", ""]"#, repeated, honest(repeated).layer(from_fn(first_of_two))),
    ] {
        let found = faults(destination, app).await;
        for finding in [format!("{shown} was answered 200 \"\""), format!("{shown} was written")] {
            assert!(found.contains(&finding), "{finding} is not in {found:#?}");
        }
    }
}
