//! Who may read and who may change.

use std::sync::Arc;

use axum::{
    extract::{Form, Request, State},
    http::{HeaderMap, HeaderName, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
};
use subtle::ConstantTimeEq;

use super::{Fields, Page, TOKEN, field, respond, view};

/// Returns whether a text can be a token and a cookie.
pub(super) fn is_token(token: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\",;\\".contains(&byte);
    token.len() >= TOKEN && token.bytes().all(is_plain)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

impl Page {
    /// Returns whether a text is the token. The time that it takes tells nothing but the length.
    fn admits(&self, given: &str) -> bool {
        let is_equal = |token: &String| token.as_bytes().ct_eq(given.as_bytes()).into();
        self.token.as_ref().is_none_or(is_equal)
    }

    fn has_bearer(&self, headers: &HeaderMap) -> bool {
        let bearer = text(headers, &header::AUTHORIZATION);
        let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
        self.token.is_some() && bearer.is_some_and(|given| self.admits(given))
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let cookies =
            headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut cookies = cookies.flat_map(|value| value.split(';'));
        cookies.any(|cookie| {
            cookie.trim().strip_prefix("token=").is_some_and(|given| self.admits(given))
        })
    }
}

/// Refuses names of other machines, and requests that another site has made a browser send.
pub(super) async fn check_origin(
    State(page): State<Arc<Page>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let host = text(headers, &header::HOST).unwrap_or_default();
    if page.token.is_none() && !is_local(host) {
        return page.say(StatusCode::FORBIDDEN, "Without a token, only this machine is served.");
    }
    let is_safe = [Method::GET, Method::HEAD].contains(request.method());
    if is_safe || page.has_bearer(headers) || is_same_origin(headers, host) {
        return next.run(request).await;
    }
    page.say(StatusCode::FORBIDDEN, "The request comes from another site.")
}

fn is_local(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host }
    });
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || address.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// A browser sends one of these headers with each form.
fn is_same_origin(headers: &HeaderMap, host: &str) -> bool {
    let site = HeaderName::from_static("sec-fetch-site");
    if let Some(site) = text(headers, &site) {
        return site == "same-origin";
    }
    let origin = text(headers, &header::ORIGIN).and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, origin)| origin == host)
}

/// Asks for the token, unless the request has it.
pub(super) async fn check_token(
    State(page): State<Arc<Page>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    if page.token.is_none() || page.has_bearer(headers) || page.has_cookie(headers) {
        return next.run(request).await;
    }
    ask(&page, false)
}

fn ask(page: &Page, is_wrong: bool) -> Response {
    let form = respond(StatusCode::UNAUTHORIZED, view::login(&page.title, is_wrong));
    ([(header::WWW_AUTHENTICATE, "Bearer")], form).into_response()
}

pub(super) async fn log_in(State(page): State<Arc<Page>>, Form(fields): Form<Fields>) -> Response {
    match (field(&fields, "token"), &page.token) {
        (Some(given), Some(token)) if page.admits(given) => {
            let cookie = format!("token={token}; HttpOnly; SameSite=Strict; Path=/");
            ([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response()
        }
        _ => ask(&page, true),
    }
}
