// HTTPS, with certificates that are made here.
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <fstream>

#include "serve/served.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace dsmoe {
namespace {

using nlohmann::json;
using test::Client;
using test::Served;

// A key and a certificate that it has signed itself, for this machine.
struct Identity {
  explicit Identity(const std::filesystem::path& folder, const char* passphrase = nullptr)
      : certificate((folder / "cert.pem").string()), key((folder / "key.pem").string()) {
    std::filesystem::create_directories(folder);
    EVP_PKEY* const pair = EVP_EC_gen("P-256");
    X509* const x509 = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
    X509_gmtime_adj(X509_getm_notBefore(x509), -60);
    X509_gmtime_adj(X509_getm_notAfter(x509), 3600);
    X509_set_pubkey(x509, pair);
    X509_NAME* const name = X509_get_subject_name(x509);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("127.0.0.1"), -1, -1, 0);
    X509_set_issuer_name(x509, name);
    EXPECT_GT(X509_sign(x509, pair, EVP_sha256()), 0);
    BIO* out = BIO_new_file(certificate.c_str(), "w");
    EXPECT_EQ(PEM_write_bio_X509(out, x509), 1);
    BIO_free(out);
    out = BIO_new_file(key.c_str(), "w");
    EXPECT_EQ(PEM_write_bio_PrivateKey(out, pair, passphrase ? EVP_aes_128_cbc() : nullptr, nullptr, 0, nullptr,
                                       const_cast<char*>(passphrase)),
              1);
    BIO_free(out);
    X509_free(x509);
    EVP_PKEY_free(pair);
  }
  std::string certificate, key;
};

class TlsClient {
 public:
  // Trusts the server's certificate and no other.
  TlsClient(std::uint16_t port, const Identity& server) : tcp_(port), context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_load_verify_locations(context_, server.certificate.c_str(), nullptr);
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, tcp_.descriptor());
    connected_ = SSL_connect(ssl_) == 1;
    if (!connected_) error_ = ERR_error_string(ERR_get_error(), nullptr);
    ERR_clear_error();
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  bool connected() const { return connected_; }
  void send(const std::string& bytes) {
    EXPECT_EQ(SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())), static_cast<int>(bytes.size())) << error_;
  }
  // Until this is there, or the connection ends.
  std::string read_until(const std::string& end) {
    while (read_.find(end) == std::string::npos) {
      char buffer[1 << 14];
      const int n = SSL_read(ssl_, buffer, sizeof buffer);
      if (n <= 0) {
        said_goodbye_ = SSL_get_error(ssl_, n) == SSL_ERROR_ZERO_RETURN;
        return std::exchange(read_, {});
      }
      read_.append(buffer, static_cast<std::size_t>(n));
    }
    const std::size_t size = read_.find(end) + end.size();
    std::string out = read_.substr(0, size);
    read_.erase(0, size);
    return out;
  }
  bool said_goodbye() const { return said_goodbye_; }
  std::string ask(const std::string& method, const std::string& path, const std::string& body, const std::string& end) {
    send(Client::request(method, path, body));
    return read_until(end);
  }

 private:
  Client tcp_;
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  std::string read_, error_;
  bool connected_ = false, said_goodbye_ = false;
};

ServeOptions with(const Identity& identity) {
  return {.ssl_cert_file = identity.certificate, .ssl_key_file = identity.key};
}
const std::string kHealthy = R"({"status":"ok"})";

TEST(Https, AnswersStreamsAndLargeBodies) {
  testing::TempFolder folder;
  const Identity identity(folder.path());
  Served s(with(identity));
  TlsClient client(s.server().port(), identity);
  ASSERT_TRUE(client.connected());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client.ask("GET", "/health", "", kHealthy).ends_with(kHealthy));
  const std::string large = json{{"content", std::string(300'000, 'A')}}.dump();
  const std::string tokens = client.ask("POST", "/tokenize", large, "]}");
  EXPECT_NE(tokens.find("[0,0,0,"), std::string::npos);
  EXPECT_GT(tokens.size(), 600'000u);
  const json body = {{"prompt", "ABC"}, {"max_tokens", 40}, {"stream", true}, {"ignore_eos", true}, {"seed", 1}};
  const std::string stream = client.ask("POST", "/v1/completions", body.dump(), "0\r\n\r\n");
  EXPECT_NE(stream.find("data: [DONE]"), std::string::npos);
  client.send("GET /health HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(client.read_until("never").ends_with(kHealthy));
  EXPECT_TRUE(client.said_goodbye()) << "the end is not cut off";
  const Identity other(folder.path() / "other");
  EXPECT_FALSE(TlsClient(s.server().port(), other).connected()) << "who is somebody else";
}

TEST(Https, SlowAndWrongHandshakesHoldUpNobody) {
  testing::TempFolder folder;
  const Identity identity(folder.path());
  ServeOptions options = with(identity);
  options.idle_seconds = 1;
  Served s(options);
  std::vector<Client> strangers;
  for (int i = 0; i < 60; ++i) {
    Client& c = strangers.emplace_back(s.server().port());
    if (i % 3 == 0) c.send("GET /health HTTP/1.1\r\n\r\n");
    if (i % 3 == 1) c.send(std::string("\x16\x03\x01\x02", 4));  // the beginning of a greeting
  }
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) {
    TlsClient client(s.server().port(), identity);
    EXPECT_TRUE(client.ask("GET", "/health", "", kHealthy).ends_with(kHealthy));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  for (Client& c : strangers) EXPECT_TRUE(c.closed_by_server(20'000));
}

TEST(Https, AClientThatGoesAwayEndsItsRequest) {
  testing::TempFolder folder;
  const Identity identity(folder.path());
  Served s(with(identity));
  const auto running = [&] {
    TlsClient client(s.server().port(), identity);
    client.ask("GET", "/metrics", "", "\ndsmoe_requests_running ");
    return client.read_until("\n");
  };
  {
    TlsClient client(s.server().port(), identity);
    const json body = {{"prompt", "ABC"}, {"max_tokens", 760}, {"stream", true}, {"ignore_eos", true}};
    client.ask("POST", "/v1/completions", body.dump(), "data: ");
  }
  std::string now;
  for (int i = 0; i < 1000 && (now = running()) != "0\n"; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(now, "0\n");
}

TEST(Https, FilesThatAreWrongAreNamed) {
  testing::TempFolder folder;
  const Identity one(folder.path() / "one"), two(folder.path() / "two"), locked(folder.path() / "locked", "secret");
  const std::string no_pem = (folder.path() / "no.pem").string();
  std::ofstream(no_pem) << "-----BEGIN NOTHING\n";
  const auto refused = [](const std::string& certificate, const std::string& key, const std::vector<std::string>& words) {
    const std::string error = testing::error_of([&] { Served s({.ssl_cert_file = certificate, .ssl_key_file = key}); });
    for (const std::string& word : words) EXPECT_NE(error.find(word), std::string::npos) << error << " has no " << word;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  };
  refused("nowhere.pem", one.key, {"ssl-cert-file", "nowhere.pem", "No such file"});
  refused(no_pem, one.key, {"ssl-cert-file", no_pem});
  refused(one.key, one.key, {"ssl-cert-file", one.key});
  refused(one.certificate, "nowhere.pem", {"ssl-key-file", "nowhere.pem", "No such file"});
  refused(one.certificate, no_pem, {"ssl-key-file", no_pem});
  refused(one.certificate, two.key, {"ssl-key-file", two.key, "mismatch"});
  refused(one.certificate, locked.key, {"ssl-key-file", locked.key});
  refused(one.certificate, "", {"ssl-cert-file", "ssl-key-file", "together"});
}

}  // namespace
}  // namespace dsmoe
